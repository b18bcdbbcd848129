// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cmath>
#include <cstring>
#include <limits>

#include "reference.hpp"
#include "support.hpp"

namespace operations_tests {

using namespace hvd_test;

// Operations beyond the matrix of built-in ones: scales, roundings, callables.

namespace {

struct matrix2 {
    std::int64_t a, b, c, d;
    friend bool operator==(const matrix2&, const matrix2&) = default;
};

matrix2 times(const matrix2& x, const matrix2& y) {
    return {x.a * y.a + x.b * y.c, x.a * y.b + x.b * y.d, x.c * y.a + x.d * y.c,
            x.c * y.b + x.d * y.d};
}

// Words of up to 15 letters. Joining them is associative and does not commute.
struct word {
    char letters[16];
    friend bool operator==(const word&, const word&) = default;
};

word joined(const word& a, const word& b) {
    word result = a;
    std::strncat(result.letters, b.letters,
                 sizeof result.letters - 1 - std::strlen(result.letters));
    return result;
}

word letter_of(int rank) { return {{char('a' + rank)}}; }

// It needs more alignment than memory has in general.
struct alignas(64) lane {
    float numbers[16];
    friend bool operator==(const lane&, const lane&) = default;
};

lane added(const lane& a, const lane& b) {
    lane sum;
    for (std::size_t i = 0; i < std::size(sum.numbers); ++i)
        sum.numbers[i] = a.numbers[i] + b.numbers[i];
    return sum;
}

lane lane_of(int number) {
    lane all;
    for (float& one : all.numbers) one = float(number);
    return all;
}

// A number of a user's with the operators that the documentation asks for, and no others.
struct meters {
    double n = 0;
    meters() = default;
    explicit meters(double from) : n(from) {}
    friend meters operator+(meters a, meters b) { return meters(a.n + b.n); }
    friend meters operator/(meters a, meters b) { return meters(a.n / b.n); }
    friend bool operator==(const meters&, const meters&) = default;
};

}  // namespace

}  // namespace operations_tests

template <>
struct hvd::dtype_traits<operations_tests::matrix2>
    : hvd::transport_only<operations_tests::matrix2> {
    static constexpr std::string_view name = "matrix2";
};

template <>
struct hvd::dtype_traits<operations_tests::word> : hvd::transport_only<operations_tests::word> {
    static constexpr std::string_view name = "word";
};

template <>
struct hvd::dtype_traits<operations_tests::lane> : hvd::transport_only<operations_tests::lane> {
    static constexpr std::string_view name = "lane";
};

template <>
struct hvd::dtype_traits<operations_tests::meters>
    : hvd::arithmetic_element<operations_tests::meters> {
    static constexpr std::string_view name = "meters";
};

namespace operations_tests {

// A compiler that uses wide vectors, and the sanitizer of alignment, see where elements lie.
TEST_CASE("elements of any alignment are reduced, also where they have travelled in messages") {
    on_every_transport([](auto& comm) {
        const lane all = lane_of(comm.size()), before = lane_of(comm.rank() + 1);
        for (const std::size_t n : {1, 7, 3000}) {
            std::vector<lane> x(n, lane_of(1)), y = x, z = x;
            std::vector<float> alone(3);
            const auto add = [](const auto& a, const auto& b) {
                if constexpr (std::is_same_v<decltype(a), const float&>) return a + b;
                else return added(a, b);
            };
            comm.allreduce(x, added);
            CHECK(x == std::vector<lane>(n, all));
            comm.scan(y, added);
            CHECK(y == std::vector<lane>(n, before));
            comm.allreduce(hvd::fuse(alone, z), add);
            CHECK(z == x);
            z.assign(n * size_of(comm), lane_of(1));
            CHECK(comm.reduce_scatter(z, added) == x);
            const auto list = comm.reduce_scatter(hvd::fuse(alone, z), add);
            CHECK(std::get<1>(list) == x);
        }
    });
}

TEST_CASE("a mean of a user's numbers divides them by /") {
    on_every_transport([](auto& comm) {
        std::vector<meters> x(5, meters(2 * comm.rank()));
        comm.allreduce(x, hvd::average);
        CHECK(x == std::vector<meters>(5, meters(comm.size() - 1)));
    });
}

TEST_CASE("matrices are multiplied in rank order") {
    on_every_transport([](auto& comm) {
        const auto of_rank = [](int rank, std::size_t i) {
            return matrix2{1, rank + 1, std::int64_t(i % 3), 1};
        };
        const auto expected = [&](std::size_t i) {
            matrix2 product = of_rank(0, i);
            for (int r = 1; r < comm.size(); ++r) product = times(product, of_rank(r, i));
            return product;
        };
        for (const std::size_t n : {std::size_t(1), std::size_t(7), std::size_t(20011)}) {
            std::vector<matrix2> x(n);
            for (std::size_t i = 0; i < n; ++i) x[i] = of_rank(comm.rank(), i);
            const auto scattered = comm.reduce_scatter(x, times);
            const part mine(n, comm.rank(), comm.size());
            CHECK(wrong(scattered, mine.count,
                        [&](std::size_t i) { return expected(mine.first + i); }) == 0);
            comm.allreduce(x, hvd::custom(times));
            CHECK(wrong(x, n, expected) == 0);
        }
    });
}

TEST_CASE("words are joined in rank order, at every root") {
    on_every_transport([](auto& comm) {
        std::string alphabet;
        for (int r = 0; r < comm.size(); ++r) alphabet += letter_of(r).letters;
        for (int root = 0; root < comm.size(); ++root) {
            word mine = letter_of(comm.rank());
            comm.reduce(mine, joined, hvd::root{root});
            CHECK(mine.letters ==
                  (comm.rank() == root ? alphabet : std::string(letter_of(comm.rank()).letters)));
        }
    });
}

TEST_CASE("captures may change from call to call") {
    on_every_transport([](auto& comm) {
        for (int limit = 1; limit < 4; ++limit) {
            int x = comm.rank() + 1;
            comm.allreduce(x, [limit](int a, int b) { return std::min(a + b, limit); });
            CHECK(x ==
                  (comm.size() == 1 ? 1 : std::min(comm.size() * (comm.size() + 1) / 2, limit)));
        }
    });
}

TEST_CASE("captures by reference and callables with state are the caller's own") {
    on_every_transport([](auto& comm) {
        const std::vector<int> table{0, 10, 20, 30, 40, 50, 60, 70};
        std::vector<int> x(table.size(), comm.rank());
        comm.allreduce(
            x, hvd::custom(
                   [&table](int a, int b) { return table[std::size_t(std::max(a, b)) % 8] / 10; },
                   hvd::commutative));
        CHECK(x == std::vector<int>(table.size(), comm.size() - 1));
    });
}

TEST_CASE("an asynchronous call keeps its callable") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(1000, 1);
        hvd::request pending;
        {
            const std::vector<int> weights(3, 2);
            pending =
                comm.allreduce_async(x, [weights](int a, int b) { return a + b + weights[1] - 2; });
        }
        pending.wait();
        CHECK(x == std::vector<int>(1000, comm.size()));
    });
}

// Returns a count with which every rank reduces some elements. Between nodes with several ranks,
// not all of them reduce a slice of a small tensor.
template <class Comm>
std::size_t least_for_all(Comm& comm) {
    const std::size_t nodes = nodes_of(comm).size();
    return nodes == 1 || nodes == size_of(comm) ? 7 : 90001;
}

TEST_CASE(
    "a callable that throws on one rank: it gets its exception, the others peer_error, all go on") {
    on_every_transport_from(2, [](auto& comm) {
        const int thrower = comm.size() / 2;
        const auto expect_failure = [&](const auto& call) {
            if (comm.rank() == thrower) {
                const auto e = thrown<std::domain_error>(call);
                if (e) CHECK(e->what() == std::string("not my kind of number"));
            } else {
                const auto e = thrown<hvd::peer_error>(call);
                if (e) CHECK(e->peers() == std::vector<int>{thrower});
                if (e) CHECK(contains(e->what(), "not my kind of number"));
            }
            check_that_it_works(comm);
        };
        const auto add = [&](int a, int b) {
            if (comm.rank() == thrower) throw std::domain_error("not my kind of number");
            return a + b;
        };
        const std::size_t least = least_for_all(comm);
        for (const std::size_t n : {std::size_t(7), std::size_t(100003)}) {
            if (n < least) continue;
            std::vector<int> x(n, 1), y(1, 1);
            expect_failure([&] { comm.allreduce(x, add); });
            expect_failure([&] { comm.reduce(x, add, hvd::root{0}); });
            expect_failure([&] { comm.reduce_scatter(x, add); });
            expect_failure([&] { comm.allreduce_async(x, add).wait(); });
            expect_failure([&] { comm.allreduce(hvd::fuse(x, y), add); });
        }
    });
}

TEST_CASE("an exception need not be a std::exception") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<int> x(least_for_all(comm), 1);
        const auto call = [&] { comm.allreduce(x, [&](int, int) -> int { throw comm.rank(); }); };
        int seen = -1;
        try {
            call();
        } catch (int rank) {
            seen = rank;
        }
        CHECK(seen == comm.rank());
        check_that_it_works(comm);
    });
}

TEST_CASE_TEMPLATE("prescale multiplies before the reduction, postscale after it", T, float, double,
                   hvd::float16, hvd::bfloat16) {
    on_every_transport([](auto& comm) {
        const int n = comm.size();
        const auto fill = [&] { return std::vector<T>(1000, T(float(comm.rank() + 1))); };
        const auto all = [](float value) { return std::vector<T>(1000, T(value)); };
        std::vector<T> x = fill();
        comm.allreduce(x, hvd::sum, {.prescale = 0.5});
        CHECK(wrong(x, 1000, [&](std::size_t) { return all(float(n * (n + 1)) / 4)[0]; }) == 0);
        x = fill();
        comm.allreduce(x, hvd::sum, {.postscale = 4});
        CHECK(wrong(x, 1000, [&](std::size_t) { return all(float(2 * n * (n + 1)))[0]; }) == 0);
        x = fill();
        comm.allreduce(x, hvd::max,
                       // a negative factor reverses the order of numbers
                       {.prescale = -2, .postscale = 0.25});
        CHECK(wrong(x, 1000, [&](std::size_t) { return all(-0.5f)[0]; }) == 0);
        x = fill();
        comm.allreduce(x, hvd::average, {.prescale = 2, .postscale = 8});
        CHECK(wrong(x, 1000, [&](std::size_t) { return all(float(8 * (n + 1)))[0]; }) == 0);
        const auto scattered = comm.reduce_scatter(fill(), hvd::sum, {.prescale = 0.5});
        CHECK(std::count_if(scattered.begin(), scattered.end(), [&](T v) {
                  return float(v) == float(T(float(n * (n + 1)) / 4));
              }) == std::ssize(scattered));
    });
}

TEST_CASE("complex numbers are scaled as a whole") {
    on_every_transport([](auto& comm) {
        std::complex<float> z(1, -2);
        comm.allreduce(z, hvd::sum, {.prescale = 2, .postscale = 0.5});
        CHECK(z == std::complex<float>(float(comm.size()), float(-2 * comm.size())));
    });
}

TEST_CASE_TEMPLATE("integers are averaged and scaled exactly, with each rounding", T, std::int8_t,
                   std::int32_t, std::int64_t) {
    using hvd::rounding;
    on_every_transport([](auto& comm) {
        const int n = comm.size();
        for (const int base : {-7, -1, 0, 3, 10}) {
            int sum = 0;
            for (int r = 0; r < n; ++r) sum += base + r;
            for (const rounding mode : {rounding::toward_zero, rounding::nearest, rounding::down}) {
                T average = T(base + comm.rank()), scaled = average;
                comm.allreduce(average, hvd::average(mode));
                CHECK(average == T(rounded_quotient(sum, n, mode)));
                comm.allreduce(scaled, hvd::sum(mode), {.prescale = 0.5, .postscale = 0.5});
                CHECK(scaled == T(rounded_quotient(sum, 4, mode)));
            }
        }
    });
}

TEST_CASE("the average of the largest integers does not overflow on the way") {
    on_every_transport([](auto& comm) {
        constexpr auto most = std::numeric_limits<std::int64_t>::max(),
                       least = std::numeric_limits<std::int64_t>::min();
        std::vector<std::int64_t> x{most, least, most - comm.rank() % 2};
        comm.allreduce(x, hvd::average(hvd::rounding::toward_zero));
        CHECK(x[0] == most);
        CHECK(x[1] == least);
        CHECK(x[2] == (comm.size() == 1 ? most : most - 1));
        std::uint64_t y = std::numeric_limits<std::uint64_t>::max();
        comm.allreduce(y, hvd::average(hvd::rounding::nearest));
        CHECK(y == std::numeric_limits<std::uint64_t>::max());
    });
}

TEST_CASE_TEMPLATE("a rounding is for integers: averages of floats take no notice", T, float,
                   double, hvd::float16, hvd::bfloat16) {
    on_every_transport([](auto& comm) {
        std::vector<T> x(21, T(float(comm.rank()))), y = x;
        comm.allreduce(x, hvd::average);
        comm.allreduce(y, hvd::average(hvd::rounding::nearest));
        for (std::size_t i = 0; i < x.size(); ++i) CHECK(float(x[i]) == float(y[i]));
    });
}

TEST_CASE("sums of integers that overflow wrap around") {
    on_every_transport([](auto& comm) {
        std::int32_t x = std::numeric_limits<std::int32_t>::max();
        std::uint8_t y = 200;
        comm.allreduce(x, hvd::sum);
        comm.allreduce(y, hvd::sum);
        CHECK(x == std::int32_t(std::uint32_t(comm.size()) *
                                std::uint32_t(std::numeric_limits<std::int32_t>::max())));
        CHECK(y == std::uint8_t(200 * comm.size()));
    });
}

TEST_CASE("integers without a rounding are not scaled: every rank is told so, and what to write") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(5, 1);
        const auto e =
            thrown<hvd::usage_error>([&] { comm.allreduce(x, hvd::sum, {.prescale = 0.5}); });
        if (e) CHECK(contains(e->what(), "hvd::rounding"));
        thrown<hvd::usage_error>([&] { comm.reduce_scatter(x, hvd::max, {.postscale = 2}); });
        CHECK(x == std::vector<int>(5, 1));
        check_that_it_works(comm);
    });
}

TEST_CASE_TEMPLATE("logical operations give 0 or 1, on any number of ranks", T, std::int8_t,
                   std::uint16_t, std::int32_t, std::uint64_t) {
    on_every_transport([](auto& comm) {
        std::vector<T> any(1003, T(5)), all(1003, T(6)), none(3, T(0));
        comm.allreduce(any, hvd::logical_or);
        comm.allreduce(all, hvd::logical_and);
        comm.allreduce(none, hvd::logical_or);
        CHECK(any == std::vector<T>(1003, T(1)));
        CHECK(all == std::vector<T>(1003, T(1)));
        CHECK(none == std::vector<T>(3, T(0)));
    });
}

TEST_CASE("one NaN anywhere is the result of min and max") {
    on_every_transport([](auto& comm) {
        for (int at = 0; at < comm.size(); ++at) {
            const float mine =
                comm.rank() == at ? std::numeric_limits<float>::quiet_NaN() : float(comm.rank());
            float least = mine, most = mine;
            hvd::bfloat16 half(mine);
            comm.allreduce(least, hvd::min);
            comm.allreduce(most, hvd::max);
            comm.allreduce(half, hvd::max);
            CHECK(std::isnan(least));
            CHECK(std::isnan(most));
            CHECK(std::isnan(float(half)));
        }
    });
}

TEST_CASE(
    "16-bit sums are accumulated in float and rounded once: in each of several nodes, and in the "
    "end") {
    on_every_transport([](auto& comm) {
        // 2048 + 1 is 2048 in float16; 2048 + 1 + 1 is 2050.
        const auto value = [](int rank) { return rank == 0 ? 2048.0f : 1.0f; };
        float expected = 0;
        for (const auto& ranks : nodes_of(comm)) {
            float of_node = 0;
            for (const int rank : ranks) of_node += value(rank);
            expected += float(hvd::float16(of_node));
        }
        hvd::float16 x(value(comm.rank()));
        comm.allreduce(x, hvd::sum);
        CHECK(float(x) == float(hvd::float16(expected)));
    });
}

TEST_CASE_TEMPLATE("the mean of finite 16-bit floats is finite, wherever the ranks are", T,
                   hvd::float16, hvd::bfloat16) {
    on_every_transport([](auto& comm) {
        const T most = std::numeric_limits<T>::max();
        const auto is_most = [&](std::size_t) { return most; };
        const double share = 1.0 / comm.size();
        for (const std::size_t n : {1u, 100u, 20011u, 150001u}) {
            CAPTURE(n);
            tensor<T> x(n);
            const auto fill = [&] { std::fill_n(x.data(), n, most); };
            fill();
            comm.allreduce(x, hvd::average);
            CHECK(wrong(x, n, is_most) == 0);
            const part mine(n, comm.rank(), comm.size());
            CHECK(wrong(comm.reduce_scatter(x, hvd::average), mine.count, is_most) == 0);
            float other = float(comm.rank());
            comm.allreduce(hvd::fuse(other, x), hvd::average);
            CHECK(wrong(x, n, is_most) == 0);
            CHECK(other == float(comm.size() - 1) / 2);
            comm.reduce(x, hvd::average, hvd::root{comm.size() - 1});
            if (comm.rank() == comm.size() - 1) CHECK(wrong(x, n, is_most) == 0);
            fill();
            auto pending = comm.allreduce_async(x, hvd::average, {.name = "mean"});
            pending.wait();
            CHECK(wrong(x, n, is_most) == 0);
            auto plan = comm.plan_allreduce(x, hvd::average);
            plan.run();
            CHECK(wrong(x, n, is_most) == 0);
            comm.scan(x, hvd::average);
            CHECK(wrong(x, n, is_most) == 0);

            tensor<float> wide(n);
            std::fill_n(wide.data(), n, float(most));
            auto coded = comm.plan_allreduce(wide, hvd::average, {}, hvd::codec::cast<T>);
            coded.run();
            CHECK(wrong(wide, n, [&](std::size_t) { return float(most); }) == 0);

            if constexpr (std::is_same_v<T, hvd::float16>) {  // bfloat16 has no larger accumulator
                fill();
                comm.allreduce(x, hvd::sum, {.postscale = share / 2});
                CHECK(wrong(x, n, [&](std::size_t) { return T(float(most) / 2); }) == 0);
                fill();
                comm.allreduce(x, hvd::average, {.prescale = 4, .postscale = 0.25});
                CHECK(wrong(x, n, is_most) == 0);
            }
        }
    });
}

TEST_CASE("the mean of equal 16-bit floats is that number, also of the least ones") {
    on_every_transport([](auto& comm) {
        for (const float value : {0x1p-24f, 3 * 0x1p-24f, 0x1p-14f, 1.0f, -0x1p-24f}) {
            tensor<hvd::float16> x(20011);
            std::fill_n(x.data(), x.size(), hvd::float16(value));
            comm.allreduce(x, hvd::average);
            CHECK(wrong(x, x.size(), [&](std::size_t) { return hvd::float16(value); }) == 0);
            hvd::bfloat16 one(value * 0x1p-109f), mean = one;
            comm.allreduce(mean, hvd::average);
            CHECK(float(mean) == float(one));
        }
        // A sum is not made smaller: numbers that the result can have are not lost on the way.
        hvd::float16 least(comm.rank() == 0 ? 0x1p-24f : 0.0f);
        comm.allreduce(least, hvd::sum);
        CHECK(float(least) == 0x1p-24f);
    });
}

TEST_CASE_TEMPLATE("the extreme values have the lowest rank that has them", T, std::int8_t,
                   std::uint64_t, float, double, hvd::float16, hvd::bfloat16) {
    on_every_transport([](auto& comm) {
        const auto value = [](int rank, std::size_t i) {
            return T(float((std::size_t(rank) * 5 + i * 3) % 7));
        };
        for (const std::size_t n : {1, 5, 3001}) {
            std::vector<T> x(n);
            for (std::size_t i = 0; i < n; ++i) x[i] = value(comm.rank(), i);
            const std::vector<T> before = x;
            const auto largest = comm.allreduce_with_rank(x, hvd::max),
                       smallest = comm.allreduce_with_rank(x, hvd::min);
            REQUIRE(largest.size() == n);
            REQUIRE(smallest.size() == n);
            int wrong_ones = 0;
            for (std::size_t i = 0; i < n; ++i) {
                int most = 0, least = 0;
                for (int r = 1; r < comm.size(); ++r) {
                    if (value(most, i) < value(r, i)) most = r;
                    if (value(r, i) < value(least, i)) least = r;
                }
                wrong_ones += largest[i] != hvd::with_rank<T>{value(most, i), most};
                wrong_ones += smallest[i] != hvd::with_rank<T>{value(least, i), least};
            }
            CHECK(wrong_ones == 0);
            CHECK(x == before);
        }
        const hvd::with_rank<T> one = comm.allreduce_with_rank(value(comm.rank(), 0), hvd::max);
        CHECK(one.value == value(one.rank, 0));
        CHECK(comm.allreduce_with_rank(T(1.0f), hvd::min).rank == 0);  // all have it
    });
}

TEST_CASE("a NaN is the extreme value, of the lowest rank that has one") {
    on_every_transport([](auto& comm) {
        const int first = comm.size() > 1 ? 1 : 0;
        const float x = comm.rank() >= first ? std::numeric_limits<float>::quiet_NaN() : 5.0f;
        const auto largest = comm.allreduce_with_rank(x, hvd::max),
                   smallest = comm.allreduce_with_rank(x, hvd::min);
        CHECK(std::isnan(largest.value));
        CHECK(std::isnan(smallest.value));
        CHECK(largest.rank == first);
        CHECK(smallest.rank == first);
    });
}

TEST_CASE("extreme values of columns and of nothing, and of ranks that disagree") {
    on_every_transport([](auto& comm) {
        std::vector<int> matrix = {comm.rank(), -1, -comm.rank(), -1};
        const auto column = hvd::view(matrix.data(), hvd::shape(2), hvd::strides(2));
        const auto most = comm.allreduce_with_rank(column, hvd::max);
        const int last = comm.size() - 1;
        CHECK(most == std::vector<hvd::with_rank<int>>{{last, last}, {0, 0}});
        CHECK(comm.allreduce_with_rank(std::vector<int>(), hvd::max).empty());
        if (comm.size() == 1) return;
        const auto differ = [&] {
            if (comm.rank() == 0) (void)comm.allreduce_with_rank(1.0f, hvd::max);
            else (void)comm.allreduce_with_rank(1, hvd::max);
        };
        if (const auto e = thrown<hvd::mismatch_error>(differ))
            CHECK(e->table()[0].second == "float32 max rank/8");
        const auto differ_in_operation = [&] {
            if (comm.rank() == 0) (void)comm.allreduce_with_rank(1, hvd::max);
            else (void)comm.allreduce_with_rank(1, hvd::min);
        };
        if (const auto e = thrown<hvd::mismatch_error>(differ_in_operation))
            CHECK(e->table()[1].second == "int32 min rank/8");
        const hvd::tensor_view<int> nothing(nullptr, {3});
        const auto null = [&] {
            (void)comm.allreduce_with_rank(comm.rank() == 0 ? nothing : hvd::view(matrix.data(), 3),
                                           hvd::max);
        };
        if (comm.rank() == 0) thrown<hvd::usage_error>(null);
        else thrown<hvd::peer_error>(null);
        check_that_it_works(comm);
    });
}

}  // namespace operations_tests
