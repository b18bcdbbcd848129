// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hvd/arena.hpp>

#include "support.hpp"

namespace one_thread_tests {

// One thread at a time makes calls on a communicator. A second thread, and code that a call runs,
// get usage_error, and the call under way goes on.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

// Returns when another thread is inside a call on `comm`: calls are refused from then on.
template <class Comm>
std::string refusal_of(Comm& comm) {
    for (;;) try {
            comm.run_ready();
            std::this_thread::sleep_for(100us);
        } catch (const hvd::usage_error& e) {
            return e.what();
        }
}

// Makes a call again that was refused because the second thread looked just then.
template <class F>
auto insist(F call) {
    for (;;) try {
            return call();
        } catch (const hvd::usage_error&) {
        }
}

template <class Comm>
bool threads_may_call(const Comm&) {
#if defined(HVD_TEST_BACKEND_MPI)
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    return level == MPI_THREAD_MULTIPLE;
#else
    return true;
#endif
}

// Rank 0 makes `call`, in which it stays until its second thread has run `meanwhile`. The peers
// make the call after that.
template <class Comm, class Call, class F>
void during(Comm& comm, Call call, F meanwhile) {
    auto gate = comm.split(0);
    if (comm.rank() != 0) {
        gate.barrier();
        call();
        return;
    }
    std::thread second([&] {
        meanwhile(refusal_of(comm));
        gate.barrier();
    });
    insist(call);
    second.join();
}

const auto refused = [](auto f) {
    const auto e = thrown<hvd::usage_error>(f);
    if (e) CHECK(contains(e->what(), "another thread is inside a call on this communicator"));
    return e ? std::string(e->what()) : std::string();
};

// Every kind of call, made by the second thread. None of them waits.
template <class Comm, class Plan>
void make_all_calls(Comm& comm, Plan& plan) {
    std::vector<float> x(100, 7), y(3, 7);
    std::vector<float> all(100 * size_of(comm));
    const std::string text = refused([&] { comm.allreduce(x, hvd::sum, {.name = "second"}); });
    CHECK(contains(text, "allreduce"));
    CHECK(contains(text, "on rank 0"));
    refused([&] { comm.allreduce(hvd::fuse(x, y), hvd::sum); });
    refused([&] { comm.allreduce_async(x, hvd::sum).wait(); });
    refused([&] { comm.broadcast(x, hvd::root{0}); });
    refused([&] { comm.broadcast(hvd::fuse(x, y), hvd::root{0}); });
    refused([&] { comm.reduce(x, hvd::sum); });
    refused([&] { comm.allgather(x); });
    refused([&] { comm.allgather(x, hvd::into(all)); });
    refused([&] { comm.allgather(hvd::fuse(x, y)); });
    refused([&] { comm.gather(x); });
    refused([&] { comm.reduce_scatter(x, hvd::sum); });
    refused([&] { comm.reduce_scatter(hvd::fuse(x, y), hvd::sum); });
    refused([&] { comm.scatter(all); });
    refused([&] { comm.alltoall(all); });
    refused([&] { comm.scan(x, hvd::sum); });
    refused([&] { comm.exscan(hvd::fuse(x, y), hvd::sum); });
    refused([&] { comm.barrier(); });
    refused([&] { comm.allgather_object(1); });
    refused([&] { plan = comm.plan_allreduce(x, hvd::sum); });
    refused([&] { plan.run(); });
    refused([&] { plan.run_async().wait(); });
    refused([&] { comm.split(0); });
    refused([&] { comm.subset({0}); });
    refused([&] { comm.local(); });
    refused([&] { hvd::arena(comm, 100); });
    CHECK(x == std::vector<float>(100, 7));
}

template <class Comm>
void check_second_thread(Comm& comm) {
    std::vector<float> planned(10, 1);
    auto plan = comm.plan_allreduce(planned, hvd::sum);
    std::vector<float> a(1000, float(comm.rank() + 1)), b(50, float(comm.rank()));
    during(
        comm, [&] { comm.allreduce(hvd::fuse(a, b), hvd::sum); },
        [&](const std::string& text) {
            CHECK(contains(text, "another thread is inside a call"));
            make_all_calls(comm, plan);
        });
    const float n = float(comm.size());
    CHECK(a == std::vector<float>(1000, n * (n + 1) / 2));
    CHECK(b == std::vector<float>(50, n * (n - 1) / 2));
    plan.run();
    CHECK(planned == std::vector<float>(10, n));
    check_that_it_works(comm);
}

struct calls_again {
    void on_begin(const hvd::event&) { call(); }
    void on_end(const hvd::event&, bool) { call(); }
    void call() {
        if (comm == nullptr) return;
        try {
            (*comm)();
        } catch (const hvd::usage_error& e) {
            texts.emplace_back(e.what());
        }
    }
    std::function<void()>* comm = nullptr;
    std::vector<std::string> texts;
};

}  // namespace

TEST_CASE("a second thread's calls are refused, and the call under way is not disturbed") {
    on_every_transport_from(2, [](auto& comm) {
        if (threads_may_call(comm)) check_second_thread(comm);
    });
}

#if defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("a second thread's calls are refused where each call is one of MPI") {
    const failing_rank_does_not_hang guard;
    auto comm = hvd::communicator<hvd::direct<hvd::mpi>>::world();
    if (comm.size() < 2 || !threads_may_call(comm)) return;
    std::vector<float> planned(10, 1), a(1000, 1);
    auto plan = comm.plan_allreduce(planned, hvd::sum);
    during(
        comm, [&] { comm.allreduce(a, hvd::sum); },
        [&](const std::string&) { make_all_calls(comm, plan); });
    CHECK(a == std::vector<float>(1000, float(comm.size())));
    check_that_it_works(comm);
}
#endif

TEST_CASE("a second thread's calls are refused while the first waits for a request") {
    on_every_transport_from(2, [](auto& comm) {
        if (!threads_may_call(comm)) return;
        std::vector<float> a(1000, 1), b(10, 1);
        hvd::request other;
        std::atomic<bool> submitted{false};
        during(
            comm,
            [&] {
                other = insist([&] { return comm.allreduce_async(b, hvd::sum); });
                auto last = insist([&] { return comm.allreduce_async(a, hvd::sum); });
                submitted = true;
                insist([&] { last.wait(); });
            },
            [&](const std::string&) {
                while (!submitted) std::this_thread::sleep_for(100us);
                refusal_of(comm);
                std::vector<float> x(10);
                refused([&] { comm.allreduce(x, hvd::sum); });
                refused([&] { other.wait(); });
                refused([&] { other.test(); });
                CHECK(other);
            });
        other.wait();
        CHECK(a == std::vector<float>(1000, float(comm.size())));
        CHECK(b == std::vector<float>(10, float(comm.size())));
        check_that_it_works(comm);
    });
}

TEST_CASE("a request that a second thread destroys is complete, whoever completes it") {
    on_every_transport_from(2, [](auto& comm) {
        if (!threads_may_call(comm)) return;
        std::vector<float> a(1000, 1), b(10, 1);
        auto other = comm.allreduce_async(b, hvd::sum);
        std::thread second;
        during(
            comm, [&] { comm.allreduce(a, hvd::sum); },
            [&](const std::string&) { second = std::thread([request = std::move(other)] {}); });
        if (second.joinable()) second.join();
        else other.wait();
        CHECK(a == std::vector<float>(1000, float(comm.size())));
        CHECK(b == std::vector<float>(10, float(comm.size())));
        check_that_it_works(comm);
    });
}

TEST_CASE("a communicator that a second thread destroys is given up by the call under way") {
    on_every_transport_from(
        2,
        [](auto& comm) {
            if (!threads_may_call(comm)) return;
            auto gate = comm.split(0), doomed = comm.split(0);
            std::vector<float> x(1000);
            if (comm.rank() == 0) {
                std::thread second([&] {
                    refusal_of(doomed);
                    const auto ended = std::move(doomed);
                });
                thrown<hvd::peer_error>([&] { insist([&] { doomed.allreduce(x, hvd::sum); }); });
                second.join();
                gate.barrier();
            } else {
                gate.barrier();
                thrown<hvd::peer_error>([&] {
                    doomed.allreduce(x, hvd::sum);  // rank 0 may have given its part
                    doomed.barrier();
                });
            }
            check_that_it_works(comm);
        },
        {.destructor_timeout = 300ms});
}

TEST_CASE("a callable makes no calls on the communicator of its call") {
    on_every_transport([](auto& comm) {
        for (const bool asynchronous : {false, true}) {
            INFO("asynchronous: ", asynchronous);
            std::string text;
            const auto add = hvd::custom([&](float p, float q) {
                if (text.empty()) try {
                        comm.barrier();
                        text = "nothing was thrown";
                    } catch (const hvd::usage_error& e) {
                        text = e.what();
                    }
                return p + q;
            });
            std::vector<float> x(size_of(comm), float(comm.rank() + 1));
            if (asynchronous) comm.allreduce_async(x, add).wait();
            else comm.allreduce(x, add);
            const float n = float(comm.size());
            CHECK(x == std::vector<float>(size_of(comm), n * (n + 1) / 2));
            if (!text.empty()) {
                CHECK(contains(text, "barrier on rank"));
                CHECK(contains(text, "this communicator is inside another call"));
            }
            int calls = text.empty() ? 0 : 1;  // the split decides which ranks run the callable
            comm.allreduce(calls, hvd::max);
            CHECK(calls == (comm.size() == 1 ? 0 : 1));
            check_that_it_works(comm);
        }
    });
}

TEST_CASE("an observer makes no calls on the communicator that it observes") {
    using observed = hvd::communicator<hvd::observed<backend, calls_again>>;
    const auto test = [](observed& comm) {
        std::function<void()> barrier = [&] { comm.barrier(); };
        comm.observer().comm = &barrier;
        check_that_it_works(comm);
        comm.observer().comm = nullptr;
        CHECK(comm.observer().texts.size() == 4);
        for (const std::string& text : comm.observer().texts)
            CHECK(contains(text, "this communicator is inside another call"));
    };
#if defined(HVD_TEST_BACKEND_MPI)
    const failing_rank_does_not_hang guard;
    auto comm = observed::world();
    test(comm);
#else
    hvd::run_threads<hvd::observed<backend, calls_again>>(3, test);
#endif
}

TEST_CASE("threads take turns on a communicator that is made for it") {
    on_every_transport(
        [](auto& comm) {
            if (!threads_may_call(comm)) return;
            for (int turn = 0; turn < 3; ++turn) {
                std::thread next([&] { check_that_it_works(comm); });
                next.join();
                check_that_it_works(comm);
            }
        },
        {.threads_take_turns = true});
}

namespace {

// Runs f on a thread of its own.
template <class F>
void on_another_thread(F f) {
    std::thread other(f);
    other.join();
}

const auto refused_as_bound = [](auto f) {
    const auto e = thrown<hvd::usage_error>(f);
    if (!e) return;
    CHECK(contains(e->what(), "bound to another thread"));
    CHECK(contains(e->what(), "hand_over"));
    CHECK(contains(e->what(), "threads_take_turns"));
    CHECK(contains(e->what(), "hvd::engine"));
};

}  // namespace

TEST_CASE("a communicator is bound to the thread of its first call until that hands it over") {
    on_every_transport([](auto& comm) {
        if (!threads_may_call(comm)) return;
        std::vector<float> x(100, 1);
        on_another_thread([&] {
            check_that_it_works(comm);  // the first to call
            comm.hand_over();
        });
        check_that_it_works(comm);
        auto plan = comm.plan_allreduce(x, hvd::sum);
        auto pending = comm.allreduce_async(x, hvd::sum);
        on_another_thread([&] {
            refused_as_bound([&] { comm.allreduce(x, hvd::sum); });
            refused_as_bound([&] { comm.allreduce_async(x, hvd::sum).wait(); });
            refused_as_bound([&] { plan.run(); });
            refused_as_bound([&] { comm.local(); });
            refused_as_bound([&] { comm.barrier(); });
            refused_as_bound([&] { comm.hand_over(); });
        });
        pending.wait();
        CHECK(x == std::vector<float>(100, float(comm.size())));
        check_that_it_works(comm);
        comm.hand_over();
        on_another_thread([&] {
            plan.run();
            check_that_it_works(comm);
            auto ended = std::move(comm);  // by any thread
        });
    });
}

TEST_CASE("a result that a wrong thread asks for stays for the right one") {
    on_every_transport_from(2, [](auto& comm) {
        if (!threads_may_call(comm)) return;
        auto gate = comm.duplicate();
        const int mine = comm.rank();
        if (mine != 0) gate.barrier();  // the call of rank 0 is not complete before
        auto waited = comm.allgather_async(mine), tested = comm.allgather_async(mine);
        if (mine == 0) {
            on_another_thread([&] {
                refused_as_bound([&] { waited.wait(); });
                refused_as_bound([&] { tested.test(); });
            });
            gate.barrier();
        }
        CHECK(bool(waited));
        CHECK(bool(tested));
        CHECK(waited.wait().values.size() == size_of(comm));
        CHECK(tested.wait().values.size() == size_of(comm));
        CHECK(!waited);
        check_that_it_works(comm);
    });
}

TEST_CASE("a communicator that another thread destroys ends well") {
    on_every_transport([](auto& comm) {
        if (!threads_may_call(comm)) return;
        auto mine = comm.split(0);
        check_that_it_works(mine);
        on_another_thread([&] { const auto ended = std::move(mine); });
        check_that_it_works(comm);
    });
}

// As a parallel loop of OpenMP: the threads of each rank come in an order of their own, and none is
// inside a call when another one comes.
TEST_CASE("threads that take turns by chance are refused, and no sum is wrong") {
    on_every_transport_from(2, [](auto& comm) {
        if (!threads_may_call(comm)) return;
        constexpr int threads = 4;
        std::mutex turn;
        std::vector<std::vector<float>> sums(threads, std::vector<float>(8));
        std::vector<std::thread> loop;
        int done = 0, refusals = 0;
        comm.barrier();
        const auto step = [&](int i) {
            const std::lock_guard lock(turn);
            sums[std::size_t(i)].assign(8, float(i + 1));
            try {
                comm.allreduce(sums[std::size_t(i)], hvd::sum);
                ++done;
            } catch (const hvd::usage_error&) {
                ++refusals;
            }
        };
        for (int i = 1; i < threads; ++i) loop.emplace_back(step, (i + comm.rank()) % threads);
        for (std::thread& t : loop) t.join();
        CHECK(done == 0);
        CHECK(refusals == threads - 1);
        check_that_it_works(comm);
    });
}

}  // namespace one_thread_tests
