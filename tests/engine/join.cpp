// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cmath>

#include "engine_test.hpp"

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

}  // namespace join_tests
