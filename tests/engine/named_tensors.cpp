// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <cmath>
#include <coroutine>
#include <mutex>
#include <numeric>

#include "detached.hpp"
#include "engine_test.hpp"

namespace named_tensors_tests {

// Tensors that ranks submit in any order, from any thread, and what becomes of their requests.

using namespace hvd_test;
using namespace std::chrono_literals;

TEST_CASE("tensors in another order on each rank and in each step are reduced by name") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const int n = comm.size();
        for (int step = 0; step < 12; ++step) {
            std::mt19937 random(unsigned(step * 100 + comm.rank()));
            std::vector<int> order(25);
            std::iota(order.begin(), order.end(), 0);
            std::shuffle(order.begin(), order.end(), random);
            std::vector<std::vector<float>> tensors(25);
            std::vector<hvd::request> requests;
            for (const int i : order) {
                tensors[std::size_t(i)].assign(std::size_t(1 + 37 * i), float(i + comm.rank()));
                requests.push_back(
                    e.allreduce("layer" + std::to_string(i), tensors[std::size_t(i)], hvd::sum));
            }
            for (hvd::request& r : requests) r.wait();
            for (int i = 0; i < 25; ++i)
                for (const float x : tensors[std::size_t(i)]) REQUIRE(x == sum_from(float(i), n));
        }
    });
}

TEST_CASE("every collective, with shapes and types of its own") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const int n = comm.size(), me = comm.rank();
        for (int step = 0; step < 6; ++step) {
            std::vector<double> a(3, me + 1.0);
            std::vector<std::int32_t> b(5, me);
            std::vector<hvd::bfloat16> c(4, hvd::bfloat16(float(me)));
            std::vector<int> rows(std::size_t(me + 1), me);
            std::vector<float> model(7, me == n - 1 ? 42.0f : 0.0f);
            std::vector<float> parts(std::size_t(n) * 2, float(me));
            std::vector<std::size_t> counts(std::size_t(n), 1);
            std::vector<int> out(std::size_t(n), me);
            auto gathered = e.allgather("rows", rows);
            auto mean = e.allreduce("a", a, hvd::average);
            auto top = e.allreduce("b", b, hvd::max);
            auto group = e.allreduce("group", hvd::fuse(c, parts), hvd::sum);
            auto sent = e.broadcast("model", model, hvd::root{n - 1});
            auto exchanged = e.alltoall("exchange", out, counts);
            auto met = e.barrier();
            met.wait();
            mean.wait();
            top.wait();
            group.wait();
            sent.wait();
            for (const double x : a) CHECK(x == doctest::Approx((n + 1) / 2.0));
            for (const auto x : b) CHECK(x == n - 1);
            for (const auto x : c) CHECK(float(x) == sum_from(0, n));
            for (const float x : parts) CHECK(x == sum_from(0, n));
            for (const float x : model) CHECK(x == 42);
            const auto all = gathered.wait();
            REQUIRE(all.values.size() == std::size_t(n * (n + 1) / 2));
            for (int r = 0; r < n; ++r) CHECK(all.counts[std::size_t(r)] == std::size_t(r + 1));
            const auto got = exchanged.wait();
            for (int r = 0; r < n; ++r) CHECK(got.values[std::size_t(r)] == r);
            std::vector<float> whole(std::size_t(3 * n + 1), float(me));
            const auto mine = e.reduce_scatter("slices", whole, hvd::sum).wait();
            CHECK(mine.size() == std::size_t(me == 0 ? 4 : 3));
            for (const float x : mine) CHECK(x == sum_from(0, n));
        }
    });
}

TEST_CASE("collectives with a root and exchanges, also of several tensors") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const int n = comm.size(), me = comm.rank(), last = n - 1;
        const std::size_t each = std::size_t(n);
        for (int step = 0; step < 6; ++step) {
            const std::vector<float> a(2 * each, float(me));
            const std::vector<int> b(each, me);
            std::vector<float> c(5, 1), d(3, 2);
            std::vector<int> own(1), exchanged(each), counted(each), all(each * each);
            const std::vector<std::size_t> counts(each, 1);
            auto sums = e.reduce("sums", hvd::fuse(c, d), hvd::sum, hvd::root{last});
            auto pairs = e.alltoall("pairs", hvd::fuse(a, b));
            auto lists = e.gather("lists", hvd::fuse(a, b), hvd::root{last});
            auto slices = e.scatter("slices", hvd::fuse(a, b), hvd::root{last});
            auto shares = e.alltoall("shares", b);
            auto first = e.alltoall("exchanged", b, hvd::into(exchanged));
            auto second = e.alltoall("counted", b, counts, hvd::into(counted));
            auto third = e.gather("all", b, hvd::into(all), hvd::root{last});
            auto fourth = e.scatter("own", b, hvd::into(own), hvd::root{last});
            auto rows = e.gather("rows", b);
            auto slice = e.scatter("slice", b);
            hvd::wait_all(sums, first, second, third, fourth);
            CHECK(c[4] == (me == last ? float(n) : 1));
            CHECK(d[2] == (me == last ? float(2 * n) : 2));
            const auto [of_a, of_b] = pairs.wait();
            const auto list = lists.wait();
            const auto [slice_a, slice_b] = slices.wait();
            CHECK(std::get<0>(list).values.size() == (me == last ? 2 * each * each : 0));
            CHECK(slice_a == std::vector<float>(2, float(last)));
            CHECK(slice_b == std::vector<int>(1, last));
            CHECK(slice.wait() == std::vector<int>(1, 0));
            CHECK(own[0] == last);
            CHECK(rows.wait().values.size() == (me == 0 ? each * each : 0));
            const auto share = shares.wait();
            for (int r = 0; r < n; ++r) {
                const auto at = std::size_t(r);
                CHECK(of_a.values[2 * at + 1] == float(r));
                CHECK((of_b.values[at] == r && share.values[at] == r));
                CHECK((exchanged[at] == r && counted[at] == r));
                CHECK(all[at * each] == (me == last ? r : 0));
            }
        }
    });
}

TEST_CASE("strided tensors, empty ones, scales and results of their own") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const int n = comm.size(), me = comm.rank();
        for (int step = 0; step < 5; ++step) {
            std::vector<float> memory(12, float(me)), nothing, scaled(4, float(me + 1));
            const hvd::tensor_view<float, hvd::host, 2, hvd::strided> columns(
                memory.data(), hvd::shape(3, 2), {4, 1});
            const std::vector<float> in(6, float(me));
            std::vector<float> out(6);
            auto a = e.allreduce("columns", columns, hvd::sum);
            auto b = e.allreduce("nothing", nothing, hvd::sum);
            auto c = e.allreduce("scaled", scaled, hvd::sum, {.prescale = 0.5, .postscale = 4});
            auto d = e.allreduce("out", in, hvd::into(out), hvd::sum);
            a.wait();
            b.wait();
            c.wait();
            d.wait();
            for (std::size_t i = 0; i < 12; ++i)
                CHECK(memory[i] == (i % 4 < 2 ? sum_from(0, n) : float(me)));
            for (const float x : scaled) CHECK(x == 2 * sum_from(1, n));
            for (const float x : out) CHECK(x == sum_from(0, n));
        }
    });
}

TEST_CASE("several threads submit, and wait for what others submit too") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const int n = comm.size(), me = comm.rank();
        std::atomic<int> wrong{0};
        std::vector<std::thread> producers;
        for (int p = 0; p < 3; ++p)
            producers.emplace_back([&, p] {
                for (int step = 0; step < 60; ++step) {
                    std::vector<float> x(std::size_t(100 * p + 1), float(step + me));
                    e.allreduce("tensor of thread " + std::to_string(p), x, hvd::sum).wait();
                    for (const float v : x)
                        if (v != sum_from(float(step), n)) ++wrong;
                }
            });
        for (std::thread& t : producers) t.join();
        CHECK(wrong == 0);
    });
}

TEST_CASE("a tensor that waits while another is expected first is not stuck") {
    on_ranks([](auto& comm) {
        engine e{comm};
        std::vector<float> a(10, 1.0f), b(10, 1.0f);
        for (int step = 0; step < 6; ++step) {
            auto first = e.allreduce("a", a, hvd::max);
            auto second = e.allreduce("b", b, hvd::max);
            first.wait();
            second.wait();
        }
        // The step is predicted now. Each of the tensors comes alone.
        for (int step = 0; step < 3; ++step) {
            e.allreduce("b", b, hvd::max).wait();
            auto polled = e.allreduce("a", a, hvd::max);
            while (!polled.test()) std::this_thread::yield();
        }
        CHECK(a[0] == 1);
    });
}

TEST_CASE("callbacks run when tensors are complete, and may submit more") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const int n = comm.size();
        for (int step = 0; step < 5; ++step) {
            std::vector<float> a(4, 1), b(4, 2);
            std::atomic<int> calls{0};
            hvd::request second;
            std::atomic<bool> ready{false};
            auto first = e.allreduce("a", a, hvd::sum, {.then = [&](std::exception_ptr failure) {
                                         if (!failure) ++calls;
                                         second = e.allreduce("b", b, hvd::sum);
                                         ready = true;
                                     }});
            first.wait();
            while (!ready) std::this_thread::yield();
            second.wait();
            CHECK(calls == 1);
            CHECK(a[0] == n);
            CHECK(b[0] == 2 * n);
            auto third = e.allreduce("a", a, hvd::max);
            std::atomic<int> told{0};
            third.then([&](const std::exception_ptr& failure) { told += failure ? 100 : 1; });
            third.wait();
            CHECK(told == 1);
        }
    });
}

TEST_CASE("two threads that run callbacks at a time may not wait in them, and may afterwards") {
    on_ranks([](auto& comm) {
        if (comm.size() > 1) return;  // the ranks' steps differ
        const std::thread::id user = std::this_thread::get_id();
        for (bool is_here = false; !is_here;) {
            engine e{comm, {.fusion_threshold = 0}};
            std::vector<float> a(4), b(4), c(4);
            for (int step = 0; step < 8; ++step) {
                auto first = e.allreduce("a", a, hvd::sum), second = e.allreduce("b", b, hvd::sum);
                e.allreduce("c", c, hvd::sum).wait();
            }
            std::atomic<bool> begun{false}, left{false}, done{false};
            std::string refusal;
            hvd::request last;
            const auto on_thread_of_engine = [&](std::exception_ptr) {
                begun = true;
                while (!left) std::this_thread::yield();
                try {
                    e.retune(e.tuned());  // it would wait for the other ranks
                } catch (const hvd::error& error) {
                    refusal = error.what();
                }
                done = true;
            };
            const auto on_thread_that_waits = [&](std::exception_ptr) {
                if (std::this_thread::get_id() != user) return;
                is_here = true;
                last = e.allreduce("c", c, hvd::sum, {.then = on_thread_of_engine});
                e.fail(nullptr);
                while (!begun) std::this_thread::yield();
            };
            e.allreduce("a", a, hvd::sum, {.then = on_thread_that_waits}).wait();
            left = true;
            if (!is_here) continue;
            while (!done) std::this_thread::yield();
            CHECK(refusal.find("it would wait for itself") != std::string::npos);
            CHECK_THROWS_AS(last.wait(), hvd::peer_error);
        }
    });
}

TEST_CASE("a name takes the callable of each submission") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const int n = comm.size();
        for (int step = 0; step < 12; ++step) {
            std::vector<int> x(4, comm.rank()), y(4, comm.rank());
            const auto plus = [step](int p, int q) { return p + q + step; };
            const auto greater = [](int p, int q) { return p > q ? p : q; };
            auto first = step % 4 == 3 ? e.allreduce("x", x, greater) : e.allreduce("x", x, plus);
            auto second = e.allreduce("y", y, greater);
            first.wait();
            second.wait();
            CHECK(x[3] == (step % 4 == 3 ? n - 1 : n * (n - 1) / 2 + step * (n - 1)));
            CHECK(y[3] == n - 1);
        }
    });
}

namespace {

detached add_up(engine& e, std::vector<float>& x, std::thread::id& where) {
    co_await e.allreduce("x", x, hvd::sum);
    where = std::this_thread::get_id();
}

}  // namespace

TEST_CASE("a coroutine resumes on the thread that calls run_ready") {
    on_ranks([](auto& comm) {
        engine e{comm};
        for (int step = 0; step < 5; ++step) {
            std::vector<float> x(3, float(comm.rank()));
            std::thread::id where;
            add_up(e, x, where);
            while (where == std::thread::id()) {
                e.run_ready();
                std::this_thread::yield();
            }
            CHECK(where == std::this_thread::get_id());
            CHECK(x[0] == sum_from(0, comm.size()));
        }
    });
}

namespace {

detached wait_in_vain(engine& e, std::vector<float>& x, bool& told) {
    try {
        co_await e.allreduce("never", x, hvd::sum);
    } catch (const hvd::peer_error&) {
        told = true;
    }
}

}  // namespace

TEST_CASE("a coroutine whose tensor never comes resumes when the engine is destroyed") {
    on_ranks_from(2, {.destructor_timeout = std::chrono::nanoseconds(200ms)}, [](auto& comm) {
        std::vector<float> x(4);
        bool told = false;
        {
            engine e{comm};
            if (comm.rank() == 0) wait_in_vain(e, x, told);
        }
        CHECK(told == (comm.rank() == 0));
    });
}

TEST_CASE("process sets are engines of their own, and run side by side") {
    on_ranks_from(2, [](auto& comm) {
        engine all{comm};
        auto odd = comm.split(comm.rank() % 2);
        engine mine{odd};
        std::vector<float> x(5, 1), y(5, 1);
        for (int step = 0; step < 8; ++step) {
            std::fill(x.begin(), x.end(), 1.0f);
            std::fill(y.begin(), y.end(), 1.0f);
            auto a = all.allreduce("x", x, hvd::sum);
            auto b = mine.allreduce("x", y, hvd::sum);
            if (comm.rank() % 2 == 0) a.wait();
            b.wait();
            a.wait();
            CHECK(x[0] == comm.size());
            CHECK(y[0] == odd.size());
        }
    });
}

TEST_CASE("the highest priority goes first of what is ready") {
    on_ranks([](auto& comm) {
        // In the cycle's time all ranks submit all tensors.
        engine e{comm, {.fusion_threshold = 0, .cycle_time = 200ms, .prediction = false}};
        std::atomic<int> called{0};
        std::vector<std::vector<float>> x(4, std::vector<float>(3));
        std::vector<hvd::request> requests;
        for (int i = 0; i < 4; ++i)
            requests.push_back(
                e.allreduce("t" + std::to_string(i), x[std::size_t(i)], hvd::sum,
                            {.priority = i, .then = [&](std::exception_ptr) { ++called; }}));
        requests[0].wait();
        for (auto& r : requests) CHECK(r.test());
        for (auto& r : requests) r.wait();
        // The last callback may run when its request is complete.
        while (called < 4) std::this_thread::yield();
    });
}

TEST_CASE("an engine that is moved works on, and one that was moved from is refused") {
    on_ranks([](auto& comm) {
        engine first{comm};
        engine second = std::move(first);
        std::vector<float> x(3, 1);
        second.allreduce("x", x, hvd::sum).wait();
        CHECK(x[0] == comm.size());
        CHECK(!first);
        CHECK_THROWS_AS((void)first.barrier(), hvd::usage_error);
    });
}

TEST_CASE("a scale that is no number is the same on all ranks") {
    on_ranks([](auto& comm) {
        engine e{comm};
        std::vector<float> x(4, 1);
        e.allreduce("x", x, hvd::sum, {.prescale = std::nan("")}).wait();
        CHECK(std::isnan(x[3]));
        comm.allreduce(x, hvd::sum, {.postscale = std::nan("")});
        CHECK(std::isnan(x[0]));
    });
}

TEST_CASE("engines come and go") {
    on_ranks([](auto& comm) {
        for (int i = 0; i < 20; ++i) {
            engine e{comm};
            std::vector<float> x(3, 1);
            e.allreduce("x", x, hvd::sum).wait();
            CHECK(x[0] == comm.size());
        }
    });
}

}  // namespace named_tensors_tests
