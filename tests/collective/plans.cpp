// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "disagreement.hpp"
#include "reference.hpp"

namespace plans_tests {

using namespace hvd_test;

// Collectives that are laid out and agreed on once, and run at every step.

TEST_CASE("a planned allreduce runs many times, each time with what its tensors hold then") {
    on_every_transport([](auto& comm) {
        std::vector<float> a(1000);
        std::vector<double> b(3);
        hvd::bfloat16 c;
        auto plan = comm.plan_allreduce(hvd::fuse(a, b, c), hvd::sum);
        CHECK(bool(plan));
        const int n = comm.size();
        for (int step = 0; step < 20; ++step) {
            a.assign(a.size(), float(comm.rank() + step));
            b.assign(b.size(), step);
            c = hvd::bfloat16(float(step));
            plan.run();
            CHECK(a == std::vector<float>(1000, float(n * step + n * (n - 1) / 2)));
            CHECK(b == std::vector<double>(3, n * step));
            CHECK(float(c) == float(n * step));
        }
    });
}

TEST_CASE("a plan of a single tensor needs no fuse") {
    on_every_transport([](auto& comm) {
        std::vector<float> x(100003);
        auto plan = comm.plan_allreduce(x, hvd::average, {.name = "x", .postscale = 2});
        for (int step = 0; step < 3; ++step) {
            x.assign(x.size(), float(step));
            plan.run();
            CHECK(x == std::vector<float>(x.size(), float(2 * step)));
        }
    });
}

TEST_CASE("several plans and plain calls take turns") {
    on_every_transport([](auto& comm) {
        std::vector<int> a(10), b(20);
        auto sum = comm.plan_allreduce(a, hvd::sum);
        auto most = comm.plan_allreduce(b, hvd::max);
        for (int step = 0; step < 5; ++step) {
            a.assign(10, 1);
            b.assign(20, comm.rank() + step);
            if (step % 2 == 0) sum.run();
            most.run();
            check_that_it_works(comm);
            if (step % 2 != 0) sum.run();
            CHECK(a == std::vector<int>(10, comm.size()));
            CHECK(b == std::vector<int>(20, comm.size() - 1 + step));
        }
    });
}

TEST_CASE("a plan runs asynchronously, again and again") {
    on_every_transport([](auto& comm) {
        std::vector<float> x(50000), y(10);
        auto one = comm.plan_allreduce(x, hvd::sum);
        auto other = comm.plan_broadcast(y, hvd::root{comm.size() - 1});
        for (int step = 0; step < 5; ++step) {
            x.assign(x.size(), float(step));
            y.assign(y.size(), float(comm.rank() * step));
            auto a = one.run_async();
            auto b = other.run_async();
            b.wait();
            a.wait();
            CHECK(x == std::vector<float>(x.size(), float(step * comm.size())));
            CHECK(y == std::vector<float>(y.size(), float(step * (comm.size() - 1))));
        }
    });
}

TEST_CASE("a planned broadcast") {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root) {
            std::vector<float> a(1000);
            std::vector<std::int8_t> b(3);
            auto plan = comm.plan_broadcast(hvd::fuse(a, b), hvd::root{root});
            for (int step = 0; step < 3; ++step) {
                a.assign(a.size(), float(comm.rank() + step));
                b.assign(b.size(), std::int8_t(comm.rank() - step));
                plan.run();
                CHECK(a == std::vector<float>(1000, float(root + step)));
                CHECK(b == std::vector<std::int8_t>(3, std::int8_t(root - step)));
            }
        }
    });
}

TEST_CASE("a planned allgather, of ranks with different sizes") {
    on_every_transport([](auto& comm) {
        std::vector<int> a(rank_of(comm)), all_a(size_of(comm) * (size_of(comm) - 1) / 2);
        double b = 0;
        std::vector<double> all_b(size_of(comm));
        auto plan = comm.plan_allgather(hvd::fuse(a, b), hvd::into(hvd::fuse(all_a, all_b)));
        for (int step = 0; step < 3; ++step) {
            a.assign(a.size(), comm.rank() * step);
            b = comm.rank() + step;
            plan.run();
            std::size_t at = 0;
            for (int r = 0; r < comm.size(); ++r) {
                CHECK(all_b[std::size_t(r)] == r + step);
                for (int i = 0; i < r; ++i) CHECK(all_a[at++] == r * step);
            }
        }
    });
}

TEST_CASE("a planned reduce_scatter") {
    on_every_transport([](auto& comm) {
        const std::size_t n = 1003;
        const part share(n, comm.rank(), comm.size());
        std::vector<float> x(n), mine(share.count);
        auto plan = comm.plan_reduce_scatter(x, hvd::sum, hvd::into(mine));
        for (int step = 0; step < 3; ++step) {
            for (std::size_t i = 0; i < n; ++i) x[i] = float(i + std::size_t(step));
            plan.run();
            CHECK(wrong(mine, share.count, [&](std::size_t i) {
                      return float(size_of(comm) * (share.first + i + std::size_t(step)));
                  }) == 0);
        }
    });
}

TEST_CASE("a plan keeps its operation, captures included") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(10);
        auto plan = [&] {
            const int limit = 5;
            return comm.plan_allreduce(x, [limit](int a, int b) { return std::min(a + b, limit); });
        }();
        for (int step = 0; step < 3; ++step) {
            x.assign(10, 2);
            plan.run();
            CHECK(x == std::vector<int>(10, comm.size() == 1 ? 2 : std::min(2 * comm.size(), 5)));
        }
    });
}

TEST_CASE("plans of empty tensors run") {
    on_every_transport([](auto& comm) {
        std::vector<float> nothing;
        auto sum = comm.plan_allreduce(nothing, hvd::sum);
        auto sent = comm.plan_broadcast(hvd::fuse(nothing, nothing));
        sum.run();
        sent.run();
        check_that_it_works(comm);
    });
}

TEST_CASE("plans move, and an empty one refuses to run") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(3, 1);
        auto plan = comm.plan_allreduce(x, hvd::sum);
        auto moved = std::move(plan);
        CHECK(!plan);
        thrown<hvd::usage_error>([&] { plan.run(); });
        thrown<hvd::usage_error>([&] { static_cast<void>(plan.run_async()); });
        moved.run();
        CHECK(x == std::vector<int>(3, comm.size()));
        auto of_moved = std::move(comm);
        moved.run();
        CHECK(x == std::vector<int>(3, of_moved.size() * of_moved.size()));
        comm = std::move(of_moved);
    });
}

TEST_CASE("a plan of a communicator that is gone refuses to run") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(3, 1);
        auto all = comm.split(0);
        auto plan = all.plan_allreduce(x, hvd::sum);
        all = {};
        comm.barrier();
        thrown<hvd::error>([&] { plan.run(); });
        CHECK(x == std::vector<int>(3, 1));
        check_that_it_works(comm);
    });
}

TEST_CASE("ranks that plan different things are told when they plan") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> a(10), b(20);
        const bool first = comm.rank() == 0;
        const auto value = [](const char* of_first, const char* of_others) {
            return [=](int rank) { return rank == 0 ? of_first : of_others; };
        };
        expect_mismatch(comm, "operation", value("max", "sum"), [&] {
            if (first) comm.plan_allreduce(a, hvd::max).run();
            else comm.plan_allreduce(a, hvd::sum).run();
        });
        const auto e = thrown<hvd::mismatch_error>(
            [&] { comm.plan_allreduce(first ? a : b, hvd::sum).run(); });
        if (e) CHECK(e->table().size() == size_of(comm));
        expect_mismatch(comm, "root", value("0", "1"),
                        [&] { comm.plan_broadcast(a, hvd::root{first ? 0 : 1}).run(); });
        expect_mismatch(comm, "prescale", value("1", "0.5"), [&] {
            comm.plan_allreduce(a, hvd::sum, {.prescale = first ? 1 : 0.5}).run();
        });
        check_that_it_works(comm);
    });
}

TEST_CASE("ranks that run different plans, or a plan against another call, are told so") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> a(10), b(10);
        const bool first = comm.rank() == 0;
        auto plan_a = comm.plan_allreduce(a, hvd::sum), plan_b = comm.plan_allreduce(b, hvd::sum);
        const auto expect_collective = [&](const auto& call) {
            const auto e = thrown<hvd::mismatch_error>(call);
            if (e) CHECK(e->field() == "collective");
            if (e) CHECK(e->table().size() == size_of(comm));
            check_that_it_works(comm);
        };
        expect_collective([&] { (first ? plan_a : plan_b).run(); });
        expect_collective([&] {
            if (first) plan_a.run();
            else comm.allreduce(a, hvd::sum);
        });
        expect_collective([&] {
            if (first) plan_a.run();
            else comm.barrier();
        });
        expect_collective([&] {
            if (first) comm.plan_allreduce(a, hvd::sum).run();
            else comm.allreduce(hvd::fuse(a), hvd::sum);
        });
        a.assign(10, 1);
        plan_a.run();
        CHECK(a == std::vector<float>(10, float(comm.size())));
    });
}

}  // namespace plans_tests
