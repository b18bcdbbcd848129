// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Calls that only a stream waits for, when a rank does not come or fails: the stream goes on, and
// the next call names the reason.

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <vector>

#include "failures.hpp"
#include "peer_error.hpp"

namespace watcher_tests {

using namespace device_test;

namespace {

using hvd::nccl;
using on_one_node = hvd::hierarchical<nccl, hvd::threads>;

struct user_stream {
    cudaStream_t handle{};
    user_stream() { cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking); }
    user_stream(const user_stream&) = delete;
    ~user_stream() { cudaStreamDestroy(handle); }
};

bool has(const std::string& text, const char* part) {
    INFO(text);
    const bool found = text.find(part) != std::string::npos;
    CHECK(found);
    return found;
}

std::ptrdiff_t threads() {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(begin(all), end(all));
}

// Ranks leave together, so that no communicator ends while others still use it.
template <class Backend, class F>
void on_ranks(int least, const hvd::communicator_options& options, F f) {
    for (int ranks = least; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks, [&](world_type& world) {
            hvd::communicator<Backend> gpus(world, options);
            f(world, gpus);
            world.barrier();
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

constexpr auto long_time = 600s;

// A session as a watcher sees it.
struct session_of_watcher {
    int rank() const { return 0; }
    int device() const { return 0; }
    bool broken() const { return is_broken; }
    void give_up(std::string_view) noexcept { is_broken = true; }
    void expire(const char*) {}
    void look_from_outside() {}
    std::exception_ptr failure_of(const char*, hvd::detail::time_point) const noexcept {
        return nullptr;
    }
    bool is_late(hvd::detail::time_point) const { return false; }
    auto& queries() { return limits; }
    hvd::detail::query_limits limits{[](void*, const char*, hvd::detail::time_point) noexcept {},
                                     nullptr};
    std::atomic<bool> is_broken = false;
};

// A stream whose work waits.
struct held_stream : user_stream {
    held_stream() {
        emulation::enqueue(handle, [this] {
            while (is_held) std::this_thread::yield();
        });
    }
    ~held_stream() { go_on(); }
    void go_on() {
        is_held = false;
        cudaStreamSynchronize(handle);
    }
    std::atomic<bool> is_held = true;
};

}  // namespace

TEST_CASE("a watcher keeps an event until it is reached, and lets go of it then") {
    session_of_watcher session;
    held_stream slow;
    const user_stream quick;
    const std::size_t before = emulation::live_objects();
    const auto events = [before] { return emulation::live_objects() - before; };
    const auto keep = [](auto& watcher, cudaStream_t stream) {
        watcher.keep(hvd::detail::cuda_event(stream, 0));
    };
    {
        hvd::detail::device_watcher<session_of_watcher> watcher(session);
        CHECK(watcher.is_idle());
        for (int i = 0; i < 5; ++i) {  // calls that are over take no memory
            keep(watcher, quick.handle);
            cudaStreamSynchronize(quick.handle);
            CHECK(events() == 1);
        }
        keep(watcher, slow.handle);
        CHECK(events() == 1);
        keep(watcher, quick.handle);
        cudaStreamSynchronize(quick.handle);
        keep(watcher, quick.handle);
        cudaStreamSynchronize(quick.handle);
        CHECK_FALSE(watcher.is_idle());
        CHECK(events() == 1);
        CHECK_FALSE(watcher.is_idle());
        session.is_broken = true;
        CHECK(watcher.is_idle());  // nobody waits for the call of a session that was given up
        CHECK(events() == 1);
        session.is_broken = false;
        slow.go_on();
        CHECK(watcher.is_idle());
        CHECK(events() == 0);
        keep(watcher, quick.handle);
    }
    CHECK(events() == 0);
    emulation::reset();
}

TEST_CASE("a watcher is idle when the work that it watches is over") {
    session_of_watcher session;
    held_stream slow;
    hvd::detail::device_watcher<session_of_watcher> watcher(session);
    watcher.add(hvd::detail::cuda_event(slow.handle, 0), {}, "a call", hvd::detail::never);
    CHECK_FALSE(watcher.is_idle());
    slow.go_on();
    CHECK(watcher.is_idle());
    CHECK_FALSE(watcher.is_overdue());
    watcher.stop();
    CHECK(watcher.is_idle());
}

TEST_CASE("a call that is over is not late, however late its watcher looks") {
    session_of_watcher session;
    const user_stream s;
    hvd::detail::device_watcher<session_of_watcher> watcher(session);
    std::atomic<bool> has_begun = false, may_go_on = false, is_over = false;
    std::atomic<int> failures = 0;
    const auto watch = [&](const char* label, hvd::detail::time_point limit) {
        hvd::detail::cuda_event done(s.handle, 0);
        return watcher.add(done, label, limit);
    };
    // The thread that watches is in this callback meanwhile.
    watch("the first", hvd::detail::never)
        ->then(
            [&](const std::exception_ptr& failure) {
                failures += failure ? 1 : 0;
                has_begun = true;
                while (!may_go_on) std::this_thread::yield();
            },
            0);
    while (!has_begun) std::this_thread::yield();
    const auto limit = hvd::detail::now() + hvd::detail::tuning::millisecond;
    watch("the second", limit)
        ->then(
            [&](const std::exception_ptr& failure) {
                failures += failure ? 1 : 0;
                is_over = true;
            },
            0);
    cudaStreamSynchronize(s.handle);
    while (hvd::detail::now() <= limit) std::this_thread::yield();
    may_go_on = true;
    while (!is_over) std::this_thread::yield();
    CHECK(failures == 0);
    CHECK_FALSE(watcher.is_overdue());
    watcher.stop();
}

TEST_CASE("a request that another one is assigned to is complete") {
    on_ranks<nccl>(2, {.timeout = long_time}, [](world_type&, auto& gpus) {
        const tensor<float> x{1}, y{2};
        cudaDeviceSynchronize();  // the stream does not wait for what they hold
        held_stream held;
        auto request = gpus.allreduce_async(x.view(), hvd::sum, {.stream = held.handle});
        auto next = gpus.allreduce_async(y.view(), hvd::max);
        std::atomic<bool> is_called = false;
        next.then([&](const std::exception_ptr&) { is_called = true; });
        std::thread lets_go([&, mine = emulation::process_of_this_thread()] {
            emulation::join_process(mine);
            std::this_thread::sleep_for(20ms);
            held.go_on();
        });
        request = std::move(next);
        CHECK_FALSE(held.is_held);
        CHECK(x.values()[0] == float(gpus.size()));
        lets_go.join();
        request.wait();
        CHECK(is_called);  // the callback of the call came with it
    });
}

TEST_CASE("a request that is assigned has the timeout and the name of its own call") {
    on_ranks<nccl>(2, {.timeout = long_time, .destructor_timeout = 200ms * slowness},
                   [](world_type& world, auto& gpus) {
                       const tensor<float> x{1}, y{2};
                       auto request = gpus.broadcast_async(x.view(), hvd::root{0});
                       if (world.rank() == world.size() - 1) return request.wait();
                       request =
                           gpus.allreduce_async(y.view(), hvd::sum, {.timeout = 100ms * slowness});
                       has(text_of<hvd::peer_error>([&] { request.wait(); }), "allreduce on rank");
                   });
}

TEST_CASE("threads of a rank let a watcher keep events, and ask if it is idle") {
    session_of_watcher session;
    hvd::detail::device_watcher<session_of_watcher> watcher(session);
    const auto keep = [&, mine = emulation::process_of_this_thread()] {
        emulation::join_process(mine);
        const user_stream s;
        for (int i = 0; i < 200; ++i) {
            watcher.keep(hvd::detail::cuda_event(s.handle, 0));
            static_cast<void>(watcher.is_idle());
        }
        cudaStreamSynchronize(s.handle);
    };
    std::thread one(keep), other(keep);
    one.join(), other.join();
    CHECK(watcher.is_idle());
}

TEST_CASE("a question that takes too long is seen by another thread, also after a pause") {
    std::atomic<bool> is_seen = false;
    hvd::detail::query_limits limits(
        [](void* self, const char*, hvd::detail::time_point) noexcept {
            *static_cast<std::atomic<bool>*>(self) = true;
        },
        &is_seen);
    for (const auto pause : {0ms, 1500ms}) {  // without questions nobody looks at them after 1 s
        std::this_thread::sleep_for(pause);
        is_seen = false;
        hvd::detail::query_limits::query query(limits, "a call", hvd::detail::now());
        const auto until = std::chrono::steady_clock::now() + 30s;
        query.ask([&] {
            while (!is_seen && std::chrono::steady_clock::now() < until)
                std::this_thread::sleep_for(1ms);
            return true;
        });
        CHECK(is_seen);
    }
}

TEST_CASE("of several questions that take too long the one with the first limit is told") {
    struct told {
        std::atomic<int> looks = 0;
        std::atomic<const char*> label = "";
        std::atomic<hvd::detail::time_point> limit = 0;
    };
    for (const bool early_is_first : {true, false}) {
        CAPTURE(early_is_first);
        told seen;
        hvd::detail::query_limits limits(
            [](void* self, const char* label, hvd::detail::time_point limit) noexcept {
                told& t = *static_cast<told*>(self);
                t.label = label;
                t.limit = limit;
                ++t.looks;
            },
            &seen);
        using query = hvd::detail::query_limits::query;
        query one(limits, early_is_first ? "early" : "late", early_is_first ? 100 : 200),
            other(limits, early_is_first ? "late" : "early", early_is_first ? 200 : 100);
        std::atomic<bool> is_over = false;
        const auto stay_in = [&](query& q) {
            q.ask([&] {
                while (!is_over) std::this_thread::sleep_for(1ms);
                return true;
            });
        };
        std::thread first([&] { stay_in(one); }), second([&] { stay_in(other); });
        const auto until = std::chrono::steady_clock::now() + 10s;
        while (std::string(seen.label) != "early" && std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(1ms);
        const int looks = seen.looks;  // soon both are seen
        while (seen.looks < looks + 20) std::this_thread::sleep_for(1ms);
        CHECK(std::string(seen.label) == "early");
        CHECK(seen.limit == 100);
        is_over = true;
        first.join(), second.join();
    }
}

TEST_CASE("threads of a rank begin and end questions side by side") {
    hvd::detail::query_limits limits([](void*, const char*, hvd::detail::time_point) noexcept {},
                                     nullptr);
    std::atomic<int> answers = 0;
    const auto ask = [&] {
        for (int i = 0; i < 20000; ++i) {
            hvd::detail::query_limits::query query(limits, "a call", 0);
            answers += query.ask([] { return 1; });
        }
    };
    std::thread one(ask), other(ask);
    one.join(), other.join();
    CHECK(answers == 40000);
}

TEST_CASE_TEMPLATE("a rank that never makes a call for which a stream waits", Backend, nccl,
                   on_one_node) {
    for (const bool by_plan : {false, true})
        on_ranks<Backend>(2, {.timeout = long_time}, [&](world_type&, auto& gpus) {
            const tensor<float> x{1, 2}, y{3};
            const user_stream s;
            auto plan = gpus.plan_allreduce(x.view(), hvd::sum);
            auto limited =
                gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::sum,
                                    {.timeout = std::chrono::milliseconds(300 * slowness)});
            gpus.allreduce(x.view(), hvd::max);  // NCCL connects the ranks in their first call
            if (gpus.rank() + 1 == gpus.size()) return;
            if (by_plan) limited.run_async(s.handle).wait(s.handle);
            else
                gpus.allreduce_async(
                        x.view(), hvd::sum,
                        {.timeout = std::chrono::milliseconds(300 * slowness), .stream = s.handle})
                    .wait(s.handle);
            cudaStreamSynchronize(s.handle);  // would never return
            const std::string why = peer_error_of([&] { plan.run(); });
            has(why, "was given up after");
            has(why, "allreduce");
            has(why, "other ranks did not come in time");
        });
}

TEST_CASE_TEMPLATE("the host learns of late work of a stream while it waits for another call",
                   Backend, nccl, on_one_node) {
    on_ranks<Backend>(2, {.timeout = long_time}, [](world_type&, auto& gpus) {
        const tensor<float> x{1}, y{1};
        const user_stream s;
        gpus.allreduce(x.view(), hvd::max);
        if (gpus.rank() + 1 == gpus.size()) return;
        gpus.allreduce_async(
                x.view(), hvd::sum,
                {.timeout = std::chrono::milliseconds(300 * slowness), .stream = s.handle})
            .wait(s.handle);
        has(peer_error_of([&] { gpus.allreduce(y.view(), hvd::sum, {.stream = s.handle}); }),
            "did not come in time");
        has(peer_error_of([&] { gpus.barrier(); }), "was given up after");
    });
}

TEST_CASE_TEMPLATE("a callback is called when the device is done, though nobody waits", Backend,
                   nccl, hvd::staged<hvd::threads>, on_one_node) {
    on_ranks<Backend>(1, {.timeout = long_time}, [](world_type&, auto& gpus) {
        const tensor<float> x{1}, y{2};
        const user_stream s;
        std::atomic<int> calls = 0, refused = 0;
        const auto count = [&](const std::exception_ptr& failure) { calls += failure ? 100 : 1; };
        auto pending = gpus.allreduce_async(x.view(), hvd::sum);
        pending.then(count);
        CHECK_THROWS_WITH_AS(pending.then(count), doctest::Contains(".then() already"),
                             hvd::usage_error);
        while (calls < 1) std::this_thread::yield();
        pending.wait();
        CHECK(x.values()[0] == float(gpus.size()));
        pending.then(count);  // it is complete
        CHECK(calls == 2);
        for (int repeat = 0; repeat < 20; ++repeat) {
            auto again = gpus.allreduce_async(y.view(), hvd::max);
            again.then(count);
            if (repeat % 2 == 0) again.wait();
            else
                while (!again.test()) std::this_thread::yield();
            CHECK(calls == 3 + repeat);
        }
        auto plan = gpus.plan_allreduce(y.view(), hvd::max);
        auto by_stream = plan.run_async(s.handle);
        by_stream.then([&](const std::exception_ptr&) {
            try {
                plan.run();
            } catch (const hvd::usage_error& e) {
                refused += std::string(e.what()).find("a callback") != std::string::npos ? 1 : 0;
            }
            ++refused;
        });
        by_stream.wait(s.handle);
        CHECK_FALSE(by_stream);
        while (refused < 2) std::this_thread::yield();
        gpus.barrier();
    });
}

TEST_CASE_TEMPLATE("a callback gets the failure of its call, as wait() does", Backend, nccl,
                   on_one_node) {
    for (const bool is_dropped : {false, true})
        on_ranks<Backend>(2, {.timeout = long_time}, [=](world_type&, auto& gpus) {
            const tensor<float> x{1, 2};
            const user_stream s;
            gpus.allreduce(x.view(), hvd::max);
            if (gpus.rank() + 1 == gpus.size()) return;
            std::string told;
            std::atomic<bool> is_told = false;
            auto pending = gpus.allreduce_async(
                x.view(), hvd::sum,
                {.timeout = std::chrono::milliseconds(300 * slowness), .stream = s.handle});
            pending.then([&](const std::exception_ptr& failure) {
                try {
                    if (failure) std::rethrow_exception(failure);
                } catch (const hvd::timeout_error& e) {
                    told = e.what();
                }
                is_told = true;
            });
            if (is_dropped) pending.wait(s.handle);
            while (!is_told) std::this_thread::yield();
            has(told, "did not come in time");
            if (!is_dropped) CHECK(peer_error_of([&] { pending.wait(); }) == told);
            has(peer_error_of([&] { gpus.barrier(); }), "was given up after");
        });
}

// The thread that finds it late may be another one than that which tells of it first.
TEST_CASE_TEMPLATE("a late call throws hvd::timeout_error and gives it to its callback", Backend,
                   nccl, on_one_node) {
    for (const bool locked : {false, true})
        on_ranks<Backend>(2, {.timeout = 300ms * slowness}, [=](world_type& world, auto& gpus) {
            const tensor<float> x{1};
            gpus.allreduce(x.view(), hvd::max);
            void* own = nullptr;
            cudaMalloc(&own, 64);
            world.barrier();
            emulation::lock_contexts(locked);
            world.barrier();
            if (gpus.rank() == 0) {
                auto request = gpus.allreduce_async(x.view(), hvd::sum);
                bool is_timeout = false;
                request.then([&](const std::exception_ptr& failure) {
                    is_timeout = !hvd_test::text_of<hvd::timeout_error>([&] {
                                      std::rethrow_exception(failure);
                                  }).empty();
                });
                cudaFree(own);
                CHECK_THROWS_AS(request.wait(), hvd::timeout_error);
                CHECK(is_timeout);
            } else {
                cudaFree(own);
            }
            world.barrier();
            emulation::lock_contexts(false);
        });
}

TEST_CASE("a rank that dies while a stream waits for it") {
    on_ranks<nccl>(2, {.timeout = long_time}, [](world_type& world, auto& gpus) {
        const tensor<float> x{1};
        const user_stream s;
        gpus.barrier();
        world.barrier();
        if (gpus.rank() + 1 == gpus.size()) {
            emulation::kill(gpus.native_handle());
            gpus.abort();
            return;
        }
        std::string why;
        try {
            gpus.allreduce_async(x.view(), hvd::sum, {.stream = s.handle}).wait(s.handle);
        } catch (const hvd::peer_error& e) {  // it was dead before
            why = e.what();
        }
        cudaStreamSynchronize(s.handle);
        if (why.empty()) why = peer_error_of([&] { gpus.barrier(); });
        has(why, "another rank is gone");
    });
}

TEST_CASE("an asynchronous error of NCCL's while a stream waits") {
    on_ranks<nccl>(2, {.timeout = long_time}, [](world_type& world, auto& gpus) {
        const tensor<float> x{1};
        const user_stream s;
        gpus.barrier();
        world.barrier();  // nobody else asks NCCL for errors from here on
        if (gpus.rank() == 0) {
            gpus.allreduce_async(x.view(), hvd::sum, {.stream = s.handle}).wait(s.handle);
            emulation::fail("ncclCommGetAsyncError", 1, ncclSystemError);
            cudaStreamSynchronize(s.handle);
            has(peer_error_of([&] { gpus.barrier(); }), "ncclCommGetAsyncError");
        }
        world.barrier();
    });
}

TEST_CASE("a stream waits for a call of a communicator that was given up") {
    on_ranks<nccl>(1, {}, [](world_type& world, auto& gpus) {
        const tensor<float> x{1};
        const user_stream s;
        auto pending = gpus.allreduce_async(x.view(), hvd::sum);
        world.barrier();
        gpus.abort();
        has(peer_error_of([&] { pending.wait(s.handle); }), "abort()");
    });
}

TEST_CASE_TEMPLATE("a communicator that was given up refuses calls before it begins them", Backend,
                   nccl, hvd::staged<hvd::threads>) {
    on_ranks<Backend>(1, {}, [](world_type& world, auto& gpus) {
        const tensor<float> x{1}, y{2, 3}, all(std::vector<float>(std::size_t(gpus.size()), -1.0f));
        auto plan = gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::sum);
        plan.run();
        world.barrier();
        gpus.abort();
        const int launches = emulation::calls_of("launch_tiles");
        world.barrier();
        const char* const why = "was given up after: abort()";
        has(peer_error_of([&] { plan.run(); }), why);
        has(peer_error_of([&] { gpus.allgather(x.view(), hvd::into(all.view())); }), why);
        CHECK(all.values()[0] == -1);
        has(peer_error_of([&] { gpus.barrier(); }), why);
        const std::string made =
            peer_error_of([&] { static_cast<void>(gpus.plan_allreduce(x.view(), hvd::sum)); });
        has(made, why);
        has(made, "allreduce on rank");
        if constexpr (std::is_same_v<Backend, nccl>)
            has(peer_error_of([&] { const hvd::device_arena arena(gpus, 4096); }), why);
        CHECK(emulation::calls_of("launch_tiles") == launches);
        world.barrier();
    });
}

TEST_CASE("who waits for a call of a communicator with parts learns why it was given up") {
    on_ranks<on_one_node>(2, {}, [](world_type& world, auto& gpus) {
        const tensor<float> x{1};
        gpus.allreduce(x.view(), hvd::max);
        world.barrier();
        held_stream s;
        auto pending = gpus.allreduce_async(x.view(), hvd::sum, {.stream = s.handle});
        hvd::detail::device_access::session_of(gpus)->give_up("a reason of its own");
        has(peer_error_of([&] { pending.wait(); }), "was given up after: a reason of its own");
        s.go_on();
        world.barrier();
    });
}

TEST_CASE("the thread that watches makes no device current but that of its communicator") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        hvd::run_threads(ranks, [](world_type& world) {
            cudaSetDevice(world.rank());
            hvd::communicator<nccl> gpus(world, {.timeout = long_time});
            const tensor<float> x{1};
            const user_stream s;
            gpus.barrier();
            const int before = emulation::calls_of("cudaEventQuery");
            emulation::enqueue(s.handle, [=, wanted = before + 10 * world.size()] {
                while (emulation::calls_of("cudaEventQuery") < wanted) std::this_thread::yield();
            });
            gpus.allreduce_async(x.view(), hvd::sum, {.stream = s.handle}).wait(s.handle);
            cudaStreamSynchronize(s.handle);
            CHECK(emulation::most_devices_of_a_thread() == 1);
            world.barrier();
        });
    emulation::reset();
}

TEST_CASE("a thread watches only work that has a timeout, and ends with the communicator") {
    on_ranks<nccl>(1, {}, [](world_type& world, auto& gpus) {
        const tensor<float> x{1};
        const user_stream s;
        gpus.barrier();  // the tensor is filled
        const auto wait_by_stream = [&](hvd::time_limit timeout) {
            gpus.allreduce_async(x.view(), hvd::max, {.timeout = timeout, .stream = s.handle})
                .wait(s.handle);
            cudaStreamSynchronize(s.handle);
            world.barrier();
            const auto now = threads();
            world.barrier();
            return now;
        };
        const auto before = wait_by_stream({});
        CHECK(wait_by_stream({}) == before);
        // One thread of each rank watches. Another one looks at limits of threads that ask CUDA.
        for (int i = 0; i < 2; ++i) {
            const auto now = wait_by_stream(long_time);
            CHECK(now >= before + gpus.size());
            CHECK(now <= before + 2 * gpus.size());
        }
        gpus = {};
        // Each rank's own stream has ended, too. The system may count a thread a moment longer.
        const auto wanted = before - world.size();
        for (int i = 0; threads() > wanted && i < 60'000; ++i) std::this_thread::sleep_for(1ms);
        CHECK(threads() <= wanted);
        world.barrier();
        CHECK(x.values()[0] == 1);
    });
}

// While a thread of the process waits for the device, CUDA may keep all others that ask it.
TEST_CASE_TEMPLATE("a limit holds while CUDA keeps the threads that ask", Backend, nccl,
                   on_one_node) {
    enum who { stream_waits, host_waits, next_call };
    for (const who kind : {stream_waits, host_waits, next_call}) {
        INFO("kind ", int(kind));
        on_ranks<Backend>(2, {.timeout = 300ms * slowness}, [kind](world_type& world, auto& gpus) {
            const tensor<float> x{1}, y{2};
            const user_stream s;
            gpus.allreduce(x.view(), hvd::max);
            void* own = nullptr;
            cudaMalloc(&own, 64);
            world.barrier();
            emulation::lock_contexts(true);
            world.barrier();
            if (gpus.rank() + 1 < gpus.size()) {
                auto request = gpus.allreduce_async(x.view(), hvd::sum);
                if (kind != host_waits) request.wait(s.handle);
                std::atomic<bool> begins = false;
                std::thread frees([&, mine = emulation::process_of_this_thread()] {
                    emulation::join_process(mine);
                    begins = true;
                    cudaFree(own);
                });
                while (!begins) std::this_thread::yield();
                std::this_thread::sleep_for(20ms);
                try {
                    if (kind == host_waits) request.wait();
                    if (kind == next_call) gpus.allreduce(y.view(), hvd::sum);
                    frees.join();
                    gpus.barrier();
                    FAIL_CHECK("nobody was told");
                } catch (const hvd::peer_error& e) {
                    has(e.what(), "did not come in time");
                } catch (const std::exception& e) {
                    FAIL_CHECK(e.what());
                }
                if (frees.joinable()) frees.join();
            }
            world.barrier();
            emulation::lock_contexts(false);
            world.barrier();
            if (gpus.rank() + 1 == gpus.size()) cudaFree(own);
        });
    }
}

TEST_CASE_TEMPLATE("a communicator ends while a stream waits for a call", Backend, nccl,
                   hvd::staged<hvd::threads>, on_one_node) {
    on_ranks<Backend>(1, {.timeout = long_time, .destructor_timeout = 2s},
                      [](world_type& world, auto& gpus) {
                          const tensor<float> x{float(gpus.rank())};
                          const user_stream s;
                          for (int i = 0; i < 5; ++i)
                              gpus.allreduce_async(x.view(), hvd::max).wait(s.handle);
                          gpus = {};
                          world.barrier();
                          cudaStreamSynchronize(s.handle);
                      });
}

TEST_CASE_TEMPLATE("a communicator ends while its watcher looks at a call that takes long", Backend,
                   hvd::staged<hvd::threads>, on_one_node) {
    on_ranks<Backend>(1, {.timeout = long_time}, [](world_type& world, auto& gpus) {
        const tensor<float> x{1};
        const user_stream s;
        gpus.barrier();
        world.barrier();
        emulation::slow_down(20);
        gpus.allreduce_async(x.view(), hvd::max).wait(s.handle);
        gpus = {};
        cudaStreamSynchronize(s.handle);
        world.barrier();
    });
}

TEST_CASE_TEMPLATE("many calls, for some of which a stream waits, and for others the host", Backend,
                   nccl, hvd::staged<hvd::threads>, on_one_node) {
    on_ranks<Backend>(1, {.timeout = long_time}, [](world_type&, auto& gpus) {
        const tensor<float> x{1}, y{float(gpus.rank())};
        const user_stream s;
        gpus.barrier();
        for (int i = 0; i < 30; ++i) {
            auto by_stream = gpus.allreduce_async(x.view(), hvd::min, {.stream = s.handle});
            auto by_host = gpus.allreduce_async(y.view(), hvd::max, {.stream = s.handle});
            by_stream.wait(s.handle);
            if (i % 2 == 0) by_host.wait();
            else
                while (!by_host.test()) std::this_thread::yield();
            if (i % 10 == 0) std::this_thread::sleep_for(2ms);  // the watcher looks
        }
        CHECK(x.values()[0] == 1);
        CHECK(y.values()[0] == float(gpus.size() - 1));
    });
}

// ---- threads of one rank that meet; of some pairs only ThreadSanitizer sees that they may not ---

namespace {

// Tells another thread to go on, and orders nothing else between the two.
struct start_signal {
    void give() { is_given.store(true, std::memory_order_relaxed); }
    void await() const {
        while (!is_given.load(std::memory_order_relaxed)) std::this_thread::yield();
    }
    std::atomic<bool> is_given = false;
};

// Two ranks with an NCCL that has windows and no ncclCommRevoke: a communicator that is given up is
// aborted.
template <class F>
void without_revoking(F f) {
    emulation::answer("ncclGetVersion", 22803);
    hvd::run_threads(2, [&](world_type& world) {
        hvd::communicator<nccl> gpus(world, {.timeout = long_time});
        gpus.barrier();
        world.barrier();
        f(world, gpus, *hvd::detail::device_access::session_of(gpus));
        world.barrier();
        gpus.abort();
        world.barrier();
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

}  // namespace

TEST_CASE("a thread ends a call for which another one waits") {
    without_revoking([](world_type& world, auto& gpus, auto&) {
        const tensor<float> x{1};
        if (world.rank() == 1) return;
        auto pending = gpus.allreduce_async(x.view(), hvd::sum);
        emulation::slow_states(20);
        const int asked = emulation::calls_of("ncclCommGetAsyncError") + 3;
        std::thread ends([&, mine = emulation::process_of_this_thread()] {
            emulation::join_process(mine);
            while (emulation::calls_of("ncclCommGetAsyncError") < asked)
                std::this_thread::sleep_for(1ms);
            gpus.abort();
        });
        has(peer_error_of([&] { pending.wait(); }), "abort()");
        ends.join();
    });
}

// NCCL would use freed memory if its communicator were revoked meanwhile.
TEST_CASE_TEMPLATE("a thread ends a call in which another one waits for NCCL's thread", Backend,
                   nccl, on_one_node) {
    for (const bool cuts_off : {false, true}) {
        on_ranks<Backend>(2, {.timeout = long_time}, [cuts_off](world_type& world, auto& gpus) {
            const tensor<float> x{1};
            if (world.rank() > 0) return;  // the first call waits for all ranks
            auto& session = *hvd::detail::device_access::session_of(gpus);
            std::thread ends([&, mine = emulation::process_of_this_thread()] {
                emulation::join_process(mine);
                while (emulation::calls_of("ncclAllReduce") == 0) std::this_thread::sleep_for(1ms);
                std::this_thread::sleep_for(5ms);
                if (cuts_off) session.cut_off("a call");
                else gpus.abort();
            });
            const std::string why =
                hvd_test::text_of<hvd::error>([&] { gpus.allreduce(x.view(), hvd::sum); });
            ends.join();
            has(why, cuts_off ? "did not come in time" : "abort()");
        });
    }
}

TEST_CASE("a call is cut off while another thread gives its communicator up") {
    without_revoking([](world_type&, auto&, auto& session) {
        start_signal is_given_up, is_cut_off;
        std::thread cuts([&] {
            is_given_up.await();
            session.cut_off("a call");
            is_cut_off.give();
        });
        {
            const hvd::detail::device_session::inside turn(session);
            session.give_up("a reason");
            is_given_up.give();
            is_cut_off.await();
        }
        cuts.join();
    });
}

TEST_CASE("a call that was cut off by force is no success, and kernels behind it are stopped") {
    for (const bool waits : {false, true})
        without_revoking([waits](world_type& world, auto&, auto& session) {
            {
                const hvd::detail::device_session::inside turn(session);
                const auto done = session.mark(session.own_stream());
                cudaStreamSynchronize(session.own_stream());
                std::thread cuts([&, mine = emulation::process_of_this_thread()] {
                    emulation::join_process(mine);
                    session.cut_off("a call");
                });
                cuts.join();
                has(peer_error_of([&] {
                        if (waits) session.wait(done, "a call", hvd::detail::never);
                        else static_cast<void>(session.test(done, "a call", hvd::detail::never));
                    }),
                    "a call");
            }
            const auto word = std::make_shared<hvd::detail::stop_word>(world.rank());
            session.stop_too(word);
            CHECK(*word->word() == 1);
        });
}

TEST_CASE("a plan ends when another thread has given its communicator up") {
    without_revoking([](world_type& world, auto& gpus, auto& session) {
        const tensor<float> x{1}, y{2};
        auto plan =
            std::make_optional(gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::sum));
        world.barrier();
        start_signal is_given_up, has_ended;
        std::thread gives_up([&, mine = emulation::process_of_this_thread()] {
            emulation::join_process(mine);
            session.give_up("a reason");
            is_given_up.give();
            has_ended.await();
        });
        is_given_up.await();
        plan.reset();
        has_ended.give();
        gives_up.join();
    });
}

TEST_CASE("arenas end on two threads at a time") {
    hvd::run_threads(1, [](world_type& world) {
        hvd::communicator<nccl> gpus(world);
        std::vector<std::unique_ptr<hvd::device_arena>> arenas[2];
        for (int i = 0; i < 60; ++i)
            for (auto& half : arenas)
                half.push_back(std::make_unique<hvd::device_arena>(gpus, 4096));
        std::atomic<int> begun = 0;
        const auto end = [&, mine = emulation::process_of_this_thread()](auto& half) {
            emulation::join_process(mine);
            ++begun;
            while (begun < 2) std::this_thread::yield();
            half.clear();
        };
        std::thread one([&] { end(arenas[0]); }), other([&] { end(arenas[1]); });
        one.join(), other.join();
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

}  // namespace watcher_tests
