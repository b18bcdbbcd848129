// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cmath>
#include <complex>

#include "engine_test.hpp"

namespace join_tests {

// An element of a program's own.
struct triple {
    double a, b, c;
    bool operator==(const triple&) const = default;
};

}  // namespace join_tests

template <>
struct hvd::dtype_traits<join_tests::triple> : hvd::transport_only<join_tests::triple> {
    static constexpr std::string_view name = "triple";
};

namespace join_tests {

// Ranks with less data than others.

using namespace hvd_test;

namespace {

// Rank r makes 3 + 2 * r steps.
template <class Step>
void uneven_steps(engine& e, Step step) {
    const int mine = 3 + 2 * e.rank(), most = 3 + 2 * (e.size() - 1);
    for (int s = 0; s < mine; ++s) {
        int active = 0;  // ranks that make this step, the highest ones
        for (int r = 0; r < e.size(); ++r)
            if (s < 3 + 2 * r) ++active;
        step(s, active);
    }
    const int last = e.join().wait();
    CHECK(last >= 0);
    CHECK(last < e.size());
    CHECK(most >= mine);
}

}  // namespace

TEST_CASE("early leavers change no result") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const int n = comm.size(), me = comm.rank();
        for (int epoch = 0; epoch < 3; ++epoch)
            uneven_steps(e, [&](int s, int active) {
                std::vector<float> sum(5, float(me + 1)), mean(300, float(s + 1));
                std::vector<double> least(4, me + 2.0), product(2, 2.0);
                std::vector<std::int32_t> most(3, -5 - me);
                std::vector<int> rows(std::size_t(me + 1), me);
                auto a = e.allreduce("sum", sum, hvd::sum);
                auto b = e.allreduce("mean", mean, hvd::average);
                auto c = e.allreduce("least", least, hvd::min);
                auto d = e.allreduce("most", most, hvd::max);
                auto p = e.allreduce("product", product, hvd::product);
                auto g = e.allgather("rows", rows);
                auto met = e.barrier();
                a.wait();
                b.wait();
                c.wait();
                d.wait();
                p.wait();
                met.wait();
                float expected = 0;
                for (int r = n - active; r < n; ++r) expected += float(r + 1);
                for (const float x : sum) CHECK(x == expected);
                for (const float x : mean) CHECK(x == doctest::Approx(s + 1));
                for (const double x : least) CHECK(x == n - active + 2);
                for (const auto x : most) CHECK(x == -5 - (n - active));
                for (const double x : product) CHECK(x == std::pow(2.0, active));
                const auto all = g.wait();
                std::size_t expected_rows = 0;
                for (int r = n - active; r < n; ++r) expected_rows += std::size_t(r + 1);
                CHECK(all.values.size() == expected_rows);
                for (int r = 0; r < n; ++r)
                    CHECK(all.counts[std::size_t(r)] == (r >= n - active ? std::size_t(r + 1) : 0));
            });
    });
}

TEST_CASE("a group goes on without the ranks that have joined, whatever its size") {
    on_ranks_from(2, [](auto& comm) {
        for (const std::size_t count :
             {std::size_t(0), std::size_t(10), std::size_t(600), std::size_t(70000)}) {
            INFO("elements: ", count);
            engine e{comm};
            std::vector<float> a(count, float(comm.rank())), b(2 * count + 1, 1.0f);
            if (comm.rank() < comm.size() - 1) {
                e.allreduce("group", hvd::fuse(a, b), hvd::sum).wait();
                e.allreduce("one", a, hvd::sum).wait();
                const int given = comm.size() - 1;
                const float sum = float(given * (given - 1) / 2);
                for (const float x : a) REQUIRE(x == sum * float(given));
                for (const float x : b) REQUIRE(x == float(given));
            }
            e.join().wait();
        }
    });
}

TEST_CASE("the mean of all ranks, as Horovod has it") {
    on_ranks([](auto& comm) {
        engine e{comm, {.mean = hvd::join_mean::of_all}};
        uneven_steps(e, [&](int, int active) {
            std::vector<float> x(5, 6);
            e.allreduce("x", x, hvd::average).wait();
            CHECK(x[0] == doctest::Approx(6.0 * active / comm.size()));
        });
    });
}

TEST_CASE("a broadcast goes on without those that have joined, unless it is their own") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        const int n = comm.size(), me = comm.rank();
        if (me == 0) {
            CHECK(e.join().wait() >= 0);
        } else {
            std::vector<int> x(3, me);
            // Rank 0 has joined for certain when the first tensor is complete without it.
            e.allreduce("first", x, hvd::max).wait();
            std::vector<int> y(3, me);
            e.broadcast("from the last", y, hvd::root{n - 1}).wait();
            CHECK(y[0] == n - 1);
            const auto text = text_of<hvd::peer_error>(
                [&] { e.broadcast("from the first", y, hvd::root{0}).wait(); });
            CHECK(text.find("rank 0 has joined") != std::string::npos);
            std::vector<float> z(std::size_t(n), 1.0f);
            const auto refused = text_of<hvd::peer_error>(
                [&] { (void)e.reduce_scatter("slices", z, hvd::sum).wait(); });
            CHECK(refused.find("needs all ranks") != std::string::npos);
            CHECK(e.join().wait() >= 0);
        }
        std::vector<float> x(3, 1);
        e.allreduce("after", x, hvd::sum).wait();
        CHECK(x[0] == n);
    });
}

TEST_CASE("a rank that has joined stays so when the engine has more names than it keeps") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm, {.cache_capacity = 2}};
        for (int round = 0; round < 2; ++round) {
            if (comm.rank() > 0)
                for (int i = 0; i < 30; ++i) {
                    float x = 1;
                    e.allreduce("t" + std::to_string(i), x, hvd::sum).wait();
                    CHECK(x == float(comm.size() - 1));
                }
            e.join().wait();
        }
    });
}

TEST_CASE("a rank that has joined submits nothing, and joins once") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        std::vector<float> x(3, 1);
        hvd::result<int> joined;
        if (comm.rank() == 0) {
            joined = e.join();
            CHECK_THROWS_AS((void)e.allreduce("x", x, hvd::sum), hvd::usage_error);
            CHECK_THROWS_AS((void)e.join(), hvd::usage_error);
        }
        comm.barrier();  // until then the others have not joined, and rank 0 is not back
        if (comm.rank() != 0) joined = e.join();
        joined.wait();
    });
}

namespace {

// All ranks but the first reduce with a prescale after it has joined, so that the elements that it
// contributes are scaled as well. Rank r has first + r.
template <class T, class Op>
void reduce_scaled_after_join(engine& e, const Op& op, double first, double prescale,
                              double expected) {
    CAPTURE(prescale);
    if (e.rank() != 0)
        for (const std::size_t count : {std::size_t(5), std::size_t(40000)}) {
            std::vector<T> x(count, T(float(first + e.rank())));
            e.allreduce("x", x, op, {.prescale = prescale}).wait();
            const T wanted = T(float(expected));
            CHECK(std::size_t(std::count(x.begin(), x.end(), wanted)) == count);
        }
    e.join().wait();
}

template <class T>
void reduce_scaled(engine& e) {
    const int last = e.size() - 1;
    for (const double prescale : {1.0, 2.0, -1.0, 0.5}) {
        const double low = prescale * (prescale < 0 ? 4 + last : 4 + 1),
                     high = prescale * (prescale < 0 ? 4 + 1 : 4 + last);
        reduce_scaled_after_join<T>(e, hvd::min, 4, prescale, low);
        reduce_scaled_after_join<T>(e, hvd::max, 4, prescale, high);
        double product = 1;
        for (int r = 1; r <= last; ++r) product *= prescale * (1 + r);
        reduce_scaled_after_join<T>(e, hvd::product, 1, prescale, product);
    }
}

}  // namespace

TEST_CASE("a rank that has joined changes no result that is scaled") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        reduce_scaled<float>(e);
        reduce_scaled<double>(e);
        reduce_scaled<hvd::float16>(e);
        reduce_scaled<hvd::bfloat16>(e);
        std::vector<std::complex<double>> known(1, 1);  // the first rank learns the reduction
        e.allreduce("complex", known, hvd::product).wait();
        for (const double prescale : {1.0, 2.0}) {
            if (e.rank() != 0) {
                std::vector<std::complex<double>> x(700, {0, 1});
                e.allreduce("complex", x, hvd::product, {.prescale = prescale}).wait();
                std::complex<double> product = 1;
                for (int r = 1; r < e.size(); ++r) product *= std::complex<double>(0, prescale);
                CHECK(std::size_t(std::count(x.begin(), x.end(), product)) == x.size());
            }
            e.join().wait();
        }
    });
}

TEST_CASE("a rank that has joined rounds a mean of integers as the others do") {
    on_ranks_from(2, [](auto& comm) {
        for (const auto rounds :
             {hvd::rounding::toward_zero, hvd::rounding::nearest, hvd::rounding::down}) {
            CAPTURE(int(rounds));
            engine e{comm};
            for (const std::size_t count : {std::size_t(3), std::size_t(60000)}) {
                const auto reduce = [&](const std::vector<int>& mine) {
                    std::vector<int> x = mine;
                    e.allreduce("mean", x, hvd::average(rounds)).wait();
                    return x;
                };
                (void)reduce(std::vector<int>(count, 0));  // what the first rank learns by
                if (e.rank() != 0) {
                    // The last rank has another number, so that the mean is no integer.
                    const int others = e.size() - 1, sum = -2 * others - (others > 1 ? 1 : 0);
                    const int mine = e.rank() == others && others > 1 ? -3 : -2;
                    const double mean = double(sum) / others;
                    const int expected = int(rounds == hvd::rounding::toward_zero ? std::trunc(mean)
                                             : rounds == hvd::rounding::nearest   ? std::round(mean)
                                                                                : std::floor(mean));
                    const std::vector<int> x = reduce(std::vector<int>(count, mine));
                    CHECK(std::size_t(std::count(x.begin(), x.end(), expected)) == count);
                }
                e.join().wait();
            }
        }
    });
}

namespace {

// One rank has joined, and the others make each call in which it takes part. Names that differ in
// their ends alone are told apart by nothing else.
template <class Engine>
void make_all_calls(Engine& e, int joined) {
    const int n = e.size(), me = e.rank();
    const std::string longest(100, 'x');
    std::vector<float> x(40000, 1), y(7, 1), z(3, 1);
    std::vector<double> w(5, 1);
    auto one = e.allreduce("one", x, hvd::sum, {.prescale = 2});
    auto group = e.allreduce("group of one type", hvd::fuse(y, z), hvd::sum);
    one.wait();
    group.wait();
    CHECK(x.front() == float(2 * (n - 1)));
    CHECK(z.back() == float(n - 1));
    for (int root = 0; root < n; ++root) {
        if (root == joined) continue;
        const std::string name = " from rank " + std::to_string(root);
        for (const std::size_t count : {std::size_t(0), std::size_t(3), std::size_t(90000)}) {
            std::vector<triple> of_a_user(count, {me + 1.0, me + 2.0, me + 3.0});
            const triple expected{root + 1.0, root + 2.0, root + 3.0};
            e.broadcast(longest + name, of_a_user, hvd::root{root}).wait();
            CHECK(of_a_user == std::vector<triple>(count, expected));
        }
        std::vector<float> a(300, float(me));
        std::vector<std::uint8_t> b(5, std::uint8_t(me));
        e.broadcast("fused" + name, hvd::fuse(a, b), hvd::root{root}).wait();
        CHECK(a.back() == float(root));
        CHECK(b.back() == root);
    }
    std::vector<float> rows(std::size_t(2 * (me + 1)), float(me));
    const auto all = e.allgather("rows", hvd::view(rows.data(), hvd::shape(me + 1, 2))).wait();
    CHECK(all.values.size() == std::size_t(n * (n + 1) - 2 * (joined + 1)));
    CHECK(e.allgather("a number", me).wait().values.size() == std::size_t(n - 1));
    e.barrier("meeting").wait();
    const auto refused = [](auto call, std::string_view why) {
        CHECK(text_of<hvd::peer_error>(call).find(why) != std::string::npos);
    };
    refused([&] { e.allreduce("two types", hvd::fuse(y, w), hvd::sum).wait(); }, "never made");
    refused([&] { (void)e.reduce_scatter("slices", y, hvd::sum).wait(); }, "needs all ranks");
    std::vector<std::size_t> counts(std::size_t(n), 0);
    counts[0] = y.size();
    refused([&] { (void)e.alltoall("exchange", y, counts).wait(); }, "needs all ranks");
    refused([&] { e.reduce("sum", y, hvd::sum).wait(); }, "needs all ranks");
    refused([&] { (void)e.gather("parts", y).wait(); }, "needs all ranks");
    refused([&] { (void)e.scatter("part", y).wait(); }, "needs all ranks");
    refused([&] { e.broadcast("from nobody", y, hvd::root{joined}).wait(); }, "has joined");
    const std::vector<triple> triples(2);
    refused([&] { (void)e.allgather("triples", triples).wait(); }, "does not know the elements");
}

template <class Backend>
void go_on_without_one() {
    for (const int node_size : {0, 1, 2}) {
        INFO("nodes of ", node_size, " ranks (0: as they are)");
        on_ranks_of<Backend>(
            [](auto& comm) {
                if (comm.size() < 2 || comm.size() > 4) return;
                INFO("rank ", comm.rank(), " of ", comm.size());
                hvd::engine e{comm};
                for (const int joined : {0, comm.size() - 1}) {
                    if (comm.rank() != joined) make_all_calls(e, joined);
                    e.join().wait();
                }
            },
            {.node_size = node_size});
    }
}

}  // namespace

TEST_CASE("a rank that has joined takes part in the calls of the others") {
    go_on_without_one<backend>();
}

TEST_CASE("checked<>: a rank that has joined takes part in the calls of the others by name") {
    go_on_without_one<hvd::checked<backend>>();
}

}  // namespace join_tests
