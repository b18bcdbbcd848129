// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cstring>
#include <limits>
#include <set>

#include "disagreement.hpp"
#include "reference.hpp"

namespace scan_calls_tests {

using namespace hvd_test;

// The forms of scan and exscan, their sizes, bits and errors. All element types with all operations
// are in scan.cpp.

namespace {

namespace tuning = hvd::detail::tuning;

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

// Returns the first letters of the alphabet.
word letters(int number) {
    word result{};
    for (int i = 0; i < number; ++i) result.letters[i] = char('a' + i);
    return result;
}

// A number of a user's.
struct cents {
    std::int64_t n;
    friend cents operator+(cents a, cents b) { return {a.n + b.n}; }
    friend auto operator<=>(const cents&, const cents&) = default;
};

// Larger than a chunk.
struct huge {
    std::int32_t cells[70000];
};

// Returns sizes in elements around the limits of a scan: of small tensors, of chunks, and of the
// windows through which slices go.
template <class T>
std::set<std::size_t> limits(int ranks, std::size_t window_bytes) {
    const std::size_t n = std::size_t(ranks), chunk = tuning::chunk_bytes / sizeof(T) * n;
    std::set<std::size_t> sizes{0, 1, n - 1, n, n + 1, 2 * chunk + n + 1};
    for (const std::size_t limit :
         {tuning::most_by_all / n / sizeof(T), tuning::running_block / sizeof(float) * n,
          window_bytes / sizeof(T), window_bytes / sizeof(T) * n, chunk})
        sizes.insert({limit - 1, limit, limit + 1});
    return sizes;
}

template <class T>
void check_limits(std::size_t window_bytes) {
    on_every_transport(
        [&](auto& comm) {
            const tensor<T> inclusive = reference<T>(hvd::sum, comm.rank() + 1),
                            exclusive = comm.rank() == 0 ? tensor<T>(period, T(0))
                                                         : reference<T>(hvd::sum, comm.rank());
            for (const std::size_t n : limits<T>(comm.size(), window_bytes)) {
                INFO(n, " elements");
                tensor<T> x = input<T>(comm.rank(), n), y = x;
                comm.scan(x, hvd::sum);
                comm.exscan(y, hvd::sum);
                CHECK(wrong(x, n, inclusive) == 0);
                CHECK(wrong(y, n, exclusive) == 0);
            }
        },
        {.shared_memory_bytes = tuning::windows * window_bytes});
}

// Sums of these numbers are rounded.
template <class T>
T inexact(int rank, std::size_t i) {
    return T(float(rank + 1) / 3 + float(i % 97) / 7);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

}  // namespace scan_calls_tests

template <>
struct hvd::dtype_traits<scan_calls_tests::word> : hvd::transport_only<scan_calls_tests::word> {
    static constexpr std::string_view name = "word";
};

template <>
struct hvd::dtype_traits<scan_calls_tests::cents>
    : hvd::arithmetic_element<scan_calls_tests::cents> {
    static constexpr std::string_view name = "cents";
};

template <>
struct hvd::dtype_traits<scan_calls_tests::huge> : hvd::transport_only<scan_calls_tests::huge> {
    static constexpr std::string_view name = "huge";
};

namespace scan_calls_tests {

TEST_CASE_TEMPLATE("scans are right around every limit of sizes", T, float, hvd::bfloat16) {
    check_limits<T>(tuning::window_bytes);
}

#if !defined(HVD_TEST_QUEUES)
TEST_CASE_TEMPLATE("scans are right through a small window", T, float, hvd::bfloat16) {
    check_limits<T>(28 * tuning::KiB);
}
#endif

TEST_CASE_TEMPLATE(
    "scan and exscan reduce in rank order: the bits do not depend on nodes, and are those of an "
    "allreduce of as many ranks",
    T, float, double, hvd::float16, hvd::bfloat16) {
    on_every_transport([](auto& comm) {
        using A = typename hvd::dtype_traits<T>::accumulator;
        const std::size_t nodes = nodes_of(comm).size();
        for (const std::size_t n : {std::size_t(97), std::size_t(20011)}) {
            std::vector<T> in(n), scanned(n), before(n), expected(n), expected_before(n);
            for (std::size_t i = 0; i < n; ++i) {
                in[i] = inexact<T>(comm.rank(), i);
                A sum = A(inexact<T>(0, i));
                for (int r = 1; r <= comm.rank(); ++r) {
                    expected_before[i] = T(sum);
                    sum += A(inexact<T>(r, i));
                }
                if (comm.rank() == 1) expected_before[i] = inexact<T>(0, i);
                expected[i] = T(sum);
            }
            comm.scan(in, scanned, hvd::sum);
            CHECK(same_bits(scanned, expected));
            comm.exscan(in, before, hvd::sum);
            if (comm.rank() > 0) CHECK(same_bits(before, expected_before));
            comm.allreduce(in, hvd::sum);
            if (comm.rank() == comm.size() - 1 && (nodes == 1 || nodes == size_of(comm)))
                CHECK(same_bits(scanned, in));
        }
    });
}

TEST_CASE("words are joined in rank order") {
    on_every_transport([](auto& comm) {
        for (const std::size_t n : {std::size_t(1), std::size_t(5003)}) {
            word mine{};
            mine.letters[0] = char('a' + comm.rank());
            std::vector<word> x(n, mine), y = x;
            comm.scan(x, joined);
            comm.exscan(y, hvd::custom(joined));
            CHECK(x == std::vector<word>(n, letters(comm.rank() + 1)));
            CHECK(y == std::vector<word>(n, comm.rank() == 0 ? mine : letters(comm.rank())));
        }
    });
}

TEST_CASE("elements larger than a chunk are scanned") {
    on_every_transport([](auto& comm) {
        const auto add = [](const huge& a, const huge& b) {
            huge sum;
            for (std::size_t i = 0; i < std::size(sum.cells); ++i)
                sum.cells[i] = a.cells[i] + b.cells[i];
            return sum;
        };
        std::vector<huge> x(3);
        for (huge& element : x)
            std::fill(std::begin(element.cells), std::end(element.cells), comm.rank() + 1);
        comm.scan(x, add);
        const int expected = (comm.rank() + 1) * (comm.rank() + 2) / 2;
        for (const huge& element : x)
            CHECK(std::count(std::begin(element.cells), std::end(element.cells), expected) ==
                  std::ssize(element.cells));
    });
}

TEST_CASE("a scan calls a callable with captures as they are now") {
    on_every_transport([](auto& comm) {
        for (int limit = 1; limit < 6; ++limit) {
            int x = comm.rank() + 1;
            comm.scan(x, [limit](int a, int b) { return std::min(a + b, limit); });
            const int sum = (comm.rank() + 1) * (comm.rank() + 2) / 2;
            CHECK(x == (comm.rank() == 0 ? 1 : std::min(sum, limit)));
        }
    });
}

TEST_CASE("scans scale before and after the reduction, and divide by the ranks that contribute") {
    on_every_transport([](auto& comm) {
        constexpr float infinity = std::numeric_limits<float>::infinity();
        const int r = comm.rank();
        for (const std::size_t n : {std::size_t(5), std::size_t(30011)}) {
            std::vector<float> x(n, float(r + 1)), y = x;
            std::vector<int> z(n, 3 * r);
            comm.scan(x, hvd::average, {.prescale = 2, .postscale = 4});
            comm.exscan(y, hvd::max, {.prescale = -2, .postscale = 0.25});
            comm.scan(z, hvd::average(hvd::rounding::down), {.postscale = 2});
            CHECK(x == std::vector<float>(n, 4 * float(r + 2)));
            CHECK(y == std::vector<float>(n, r == 0 ? -infinity : -0.5f));
            CHECK(z == std::vector<int>(n, 3 * r));
        }
    });
}

TEST_CASE("strided tensors are scanned, and what lies between their elements stays") {
    on_every_transport([](auto& comm) {
        for (const std::size_t rows : {std::size_t(3), std::size_t(20011)}) {
            const int r = comm.rank(), sum = (r + 1) * (r + 2) / 2, before = r * (r + 1) / 2;
            std::vector<int> in(2 * rows, r + 1), out(2 * rows, -1), x = in;
            const auto column = [&](auto& matrix) {
                return hvd::view(matrix.data(), hvd::shape(rows), hvd::strides(2));
            };
            const auto check = [&](const std::vector<int>& matrix, int value, int between) {
                CHECK(wrong(matrix, 2 * rows,
                            [&](std::size_t i) { return i % 2 == 0 ? value : between; }) == 0);
            };
            comm.exscan(column(in), column(out), hvd::sum);
            check(out, before, -1);
            check(in, r + 1, r + 1);
            comm.scan(column(in), column(out), hvd::sum);
            check(out, sum, -1);
            comm.exscan(column(x), hvd::sum);
            check(x, before, r + 1);
            comm.scan_async(column(in), hvd::sum).wait();
            check(in, sum, r + 1);
        }
    });
}

TEST_CASE("several tensors are scanned in one call, also of several types") {
    on_every_transport([](auto& comm) {
        const int r = comm.rank();
        for (const std::size_t n : {std::size_t(4), std::size_t(90001)}) {
            const auto fill = [&](std::vector<float>& a, std::vector<double>& b, int& c) {
                a.assign(n, float(r));
                b.assign(3, 2 * r);
                c = r + 1;
            };
            std::vector<float> a;
            std::vector<double> b;
            int c = 0;
            fill(a, b, c);
            comm.scan(hvd::fuse(a, b, c), hvd::sum);
            const int sum = r * (r + 1) / 2;
            CHECK(a == std::vector<float>(n, float(sum)));
            CHECK(b == std::vector<double>(3, 2 * sum));
            CHECK(c == sum + r + 1);
            fill(a, b, c);
            comm.exscan_async(hvd::fuse(a, b, c), hvd::sum).wait();
            CHECK(a == std::vector<float>(n, float(sum - r)));
            CHECK(b == std::vector<double>(3, 2 * (sum - r)));
            CHECK(c == sum);
            std::vector<std::vector<float>> list{std::vector<float>(n, 1),
                                                 std::vector<float>(2, 2)};
            comm.scan(hvd::fuse(list), hvd::average);
            CHECK(list == std::vector<std::vector<float>>{std::vector<float>(n, 1),
                                                          std::vector<float>(2, 2)});
        }
    });
}

TEST_CASE("each type of a list has its own first result of an exscan") {
    on_every_transport([](auto& comm) {
        const int r = comm.rank(), sum = r * (r - 1) / 2;
        std::vector<float> a(3, float(r + 5));
        std::vector<cents> b(7, cents{r + 5});
        std::vector<int> c(4, r + 5), gaps(8, r + 5);
        const auto column = hvd::view(gaps.data(), hvd::shape(4), hvd::strides(2));
        comm.exscan(hvd::fuse(a, b, c, column), hvd::sum);
        CHECK(a == std::vector<float>(3, float(sum + 5 * r)));
        CHECK(b == std::vector<cents>(7, cents{r == 0 ? 5 : sum + 5 * r}));
        CHECK(c == std::vector<int>(4, sum + 5 * r));
        CHECK(gaps[6] == sum + 5 * r);
        CHECK(gaps[7] == r + 5);
    });
}

TEST_CASE("scans that are begun complete in order and keep their callable") {
    on_every_transport([](auto& comm) {
        const int r = comm.rank();
        std::vector<int> x(1000, r + 1), out(1000, -1), large(100003, 1);
        std::vector<hvd::request> pending;
        {
            const std::vector<int> weights(3, 2);
            pending.push_back(
                comm.scan_async(x, [weights](int a, int b) { return a + b + weights[1] - 2; }));
        }
        pending.push_back(comm.exscan_async(x, out, hvd::max));
        pending.push_back(comm.scan_async(large, hvd::sum));
        for (hvd::request& one : pending) one.wait();
        CHECK(x == std::vector<int>(1000, (r + 1) * (r + 2) / 2));
        constexpr int lowest = std::numeric_limits<int>::lowest();
        CHECK(out == std::vector<int>(1000, r == 0 ? lowest : r * (r + 1) / 2));
        CHECK(large == std::vector<int>(100003, r + 1));
    });
}

TEST_CASE("a callable that throws on one rank: it gets its exception, the others peer_error") {
    on_every_transport_from(2, [](auto& comm) {
        const int thrower = comm.size() - 1;
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
        for (const std::size_t n : {std::size_t(7), std::size_t(100003), std::size_t(600011)}) {
            std::vector<int> x(n, 1), y(3, 1);
            expect_failure([&] { comm.scan(x, add); });
            expect_failure([&] { comm.scan_async(x, add).wait(); });
            expect_failure([&] { comm.scan(hvd::fuse(x, y), add); });
            if (comm.size() == 2) continue;  // one rank contributes to an exscan: nothing to reduce
            expect_failure([&] { comm.exscan(x, add); });
        }
    });
}

TEST_CASE("ranks that disagree about a scan are told the field") {
    on_every_transport_from(2, [](auto& comm) {
        const bool odd = comm.rank() % 2 != 0;
        const auto value = [](const char* even_one, const char* odd_one) {
            return [=](int rank) { return rank % 2 != 0 ? odd_one : even_one; };
        };
        std::vector<float> x(odd ? 3 : 17), y(5);
        std::vector<int> z(5);
        expect_mismatch(comm, "shape", value("[17]", "[3]"), [&] { comm.scan(x, hvd::sum); });
        expect_mismatch(comm, "shape", value("[17]", "[3]"), [&] { comm.exscan(x, hvd::sum); });
        expect_mismatch(comm, "collective", value("scan", "exscan"), [&] {
            if (odd) comm.exscan(y, hvd::sum);
            else comm.scan(y, hvd::sum);
        });
        expect_mismatch(comm, "operation", value("max", "sum"), [&] {
            if (odd) comm.exscan(y, hvd::sum);
            else comm.exscan(y, hvd::max);
        });
        expect_mismatch(comm, "element type", value("int32", "float32"), [&] {
            if (odd) comm.scan(y, hvd::sum);
            else comm.scan(z, hvd::sum);
        });
        expect_mismatch(comm, "prescale", value("1", "2"),
                        [&] { comm.scan(y, hvd::sum, {.prescale = odd ? 2.0 : 1.0}); });
    });
}

TEST_CASE("a rank whose scan is wrong refuses it, and tells the others") {
    on_every_transport_from(2, [](auto& comm) {
        const int culprit = comm.size() - 1;
        const bool wrong_here = comm.rank() == culprit;
        std::vector<float> in(8, 1), out(wrong_here ? 7 : 8, -1);
        expect_refusal(comm, culprit, "hvd: scan 'sizes': output has 7 elements, input 8",
                       [&] { comm.scan(in, out, hvd::sum, {.name = "sizes"}); });
        expect_refusal(comm, culprit, "overlap in part", [&] {
            comm.exscan(hvd::view(in.data(), 6), hvd::view(in.data() + (wrong_here ? 1 : 0), 6),
                        hvd::sum);
        });
        CHECK(in == std::vector<float>(8, 1));
    });
}

TEST_CASE("a scan of integers with a scale needs a rounding") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(5, 1);
        const auto e =
            thrown<hvd::usage_error>([&] { comm.exscan(x, hvd::sum, {.prescale = 0.5}); });
        if (e) CHECK(contains(e->what(), "hvd: exscan: int32 can't be scaled"));
        CHECK(x == std::vector<int>(5, 1));
        check_that_it_works(comm);
    });
}

}  // namespace scan_calls_tests
