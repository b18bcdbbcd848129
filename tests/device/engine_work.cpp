// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The work of an engine's device tensors: who is told that it is done, and how small ones travel.

#include <atomic>
#include <coroutine>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include <hvd/timeline.hpp>

#include <nlohmann/json.hpp>

#include "detached.hpp"
#include "engine_support.hpp"

namespace engine_work_tests {

using namespace device_test;
using hvd_test::detached;

namespace {

// Keeps what it is told of an engine's tensors, in one order for all threads of a rank.
class remembering {
public:
    void on_begin(const hvd::event&) {}
    void on_end(const hvd::event&, bool) {}
    void on_submitted(const hvd::event& e) { keep("submitted", e); }
    void on_rank_ready(const hvd::event& e, int) { keep("rank", e); }
    void on_ready(const hvd::event& e) { keep("ready", e); }
    void on_complete(const hvd::event& e, bool succeeded) {
        keep(succeeded ? "complete" : "incomplete", e);
    }

    struct line {
        std::string what, name;
        hvd::event event;
    };
    std::vector<line> of(std::string_view name, std::string_view what) {
        const std::lock_guard lock(mutex_);
        std::vector<line> found;
        for (const line& l : lines_)
            if (l.name == name && l.what == what) found.push_back(l);
        return found;
    }

private:
    void keep(const char* what, const hvd::event& e) {
        const std::lock_guard lock(mutex_);
        lines_.push_back({what, std::string(e.name), e});
    }

    std::mutex mutex_;
    std::vector<line> lines_;
};
using observed = hvd::observed<hvd::threads, remembering>;
constexpr std::size_t steps = 8;  // some are negotiated, some are predicted

// Work of a stream that does not end before it is let go.
class gate {
public:
    explicit gate(cudaStream_t stream) {
        emulation::enqueue(stream, [open = open_] {
            while (!*open) std::this_thread::sleep_for(100us);
        });
    }
    gate(const gate&) = delete;
    ~gate() { *open_ = true; }

    void open() { *open_ = true; }

private:
    std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

void wait_for(const std::atomic<int>& count, int wanted) {
    while (count < wanted) std::this_thread::yield();
}

// Waits for a tensor, and keeps its first element, or the text of its exception.
detached await(hvd::named_device_request request, const tensor<float>& x, std::string& result) {
    try {
        co_await request;
        result = std::to_string(int(x.values()[0]));
    } catch (const hvd::error& e) {
        result = e.what();
    }
}

}  // namespace

// ---- callbacks and coroutines -------------------------------------------------------------------

TEST_CASE_TEMPLATE("a callback is called once when the work is done, and may submit more", Devices,
                   every_kind) {
    on_engines<Devices>([](auto& e) {
        const int n = e.size();
        for (int step = 0; step < 6; ++step) {
            const tensor<float> x(filled(40, 1.0f)), y(filled(40, 2.0f));
            std::vector<float> seen;
            std::atomic<int> first{0}, second{0};
            hvd::named_device_request more;
            auto told = e.allreduce("x", x.view(), hvd::sum, {.then = [&](std::exception_ptr why) {
                                        if (!why) seen = x.values();
                                        more = e.allreduce("y", y.view(), hvd::sum,
                                                           {.then = [&](auto) { ++second; }});
                                        ++first;
                                    }});
            if (step % 2 == 0) told.wait();
            wait_for(first, 1);
            CHECK(seen == filled(40, float(n)));
            more.wait();
            CHECK(y.values() == filled(40, float(2 * n)));
            wait_for(second, 1);
            told.wait();
            CHECK((told.test() && !told));
            CHECK((first == 1 && second == 1));
        }
    });
}

TEST_CASE_TEMPLATE("a request is given a callback, before and after its work", Devices,
                   every_kind) {
    on_engines<Devices>([](auto& e) {
        std::atomic<int> calls{0};
        const auto count = [&](const std::exception_ptr& why) { calls += why ? 100 : 1; };
        for (int step = 0; step < 6; ++step) {
            const tensor<float> x(filled(40, 1.0f));
            auto pending = e.allreduce("x", x.view(), hvd::sum);
            pending.then(count);
            CHECK_THROWS_AS(pending.then(count), hvd::usage_error);
            if (step % 2 == 0) pending.wait();
            wait_for(calls, 2 * step + 1);
            CHECK(x.values() == filled(40, float(e.size())));
            pending.wait();
            pending.then(count);
            CHECK(calls == 2 * step + 2);
        }
        const tensor<float> y(filled(std::size_t(40 + e.rank()), 1.0f));
        calls = 0;
        auto wrong = e.allreduce("y", y.view(), hvd::sum);
        wrong.then(count);
        wait_for(calls, 1);
        CHECK(calls == (e.size() > 1 ? 100 : 1));
        if (e.size() > 1) CHECK_THROWS_AS(wrong.wait(), hvd::mismatch_error);
        e.barrier().wait();  // the failure is told once
    });
}

TEST_CASE("a callback waits for the device, and the engine does not") {
    on_engines<hvd::nccl>([](auto& e) {
        const user_stream user;
        const tensor<float> x(filled(40, 1.0f)), z(filled(40, 1.0f));
        std::vector<float> h(10, 1);
        std::atomic<int> called{0}, refused{0};
        cudaStreamSynchronize(nullptr);  // the user's stream does not wait for the copies
        gate held(user.handle);
        auto a = e.allreduce("x", x.view(), hvd::sum,
                             {.stream = user.handle, .then = [&](auto) { ++called; }});
        std::string awaited;
        const tensor<float> y(filled(40, 2.0f));
        await(e.allreduce("y", y.view(), hvd::sum), y, awaited);
        for (int step = 0; step < 5; ++step) e.allreduce("h", h, hvd::sum).wait();
        auto b = e.allreduce("z", z.view(), hvd::sum, {.stream = user.handle});
        e.barrier().wait();
        auto c = e.allreduce("h", h, hvd::sum, {.then = [&](auto) {
                                 CHECK_THROWS_AS(a.wait(), hvd::usage_error);
                                 CHECK_THROWS_AS(b.wait(), hvd::usage_error);
                                 ++refused;
                             }});
        wait_for(refused, 1);
        c.wait();
        CHECK((called == 0 && !a.test() && a));
        e.run_ready();
        CHECK(awaited.empty());
        held.open();
        a.wait();
        CHECK(x.values() == filled(40, float(e.size())));
        wait_for(called, 1);
        while (awaited.empty()) e.run_ready();
        CHECK(awaited == std::to_string(2 * e.size()));
        b.wait();
        CHECK(z.values() == filled(40, float(e.size())));
    });
}

TEST_CASE("a stream waits for a tensor that has a callback") {
    on_engines<hvd::nccl>([](auto& e) {
        const user_stream works, waits;
        const tensor<float> x(filled(40, 1.0f));
        std::atomic<int> called{0};
        std::atomic<bool> goes_on = false;
        cudaStreamSynchronize(nullptr);  // the user's stream does not wait for the copies
        gate held(works.handle);
        auto told = e.allreduce("x", x.view(), hvd::sum,
                                {.stream = works.handle, .then = [&](auto) { ++called; }});
        told.wait(waits.handle);
        emulation::enqueue(waits.handle, [&] { goes_on = true; });
        std::this_thread::sleep_for(10ms);
        CHECK_FALSE(goes_on);
        held.open();
        cudaStreamSynchronize(waits.handle);
        CHECK(goes_on);
        CHECK(x.values() == filled(40, float(e.size())));
        wait_for(called, 1);
    });
}

TEST_CASE_TEMPLATE("a coroutine waits for a device tensor at any time", Devices, every_kind) {
    on_engines<Devices>([](auto& e) {
        for (int step = 0; step < 6; ++step) {
            const tensor<float> x(filled(40, 1.0f)), y(filled(40, 2.0f)), z(filled(4, 3.0f));
            std::string first, second, third;
            auto late = e.allreduce("y", y.view(), hvd::sum);
            await(e.allreduce("x", x.view(), hvd::sum), x, first);
            std::atomic<int> called{0};
            auto both = e.allreduce("z", z.view(), hvd::sum, {.then = [&](auto) { ++called; }});
            e.barrier().wait();
            await(std::move(late), y, second);  // its work is enqueued, or done
            await(std::move(both), z, third);
            while (first.empty() || second.empty() || third.empty()) e.run_ready();
            CHECK(first == std::to_string(e.size()));
            CHECK(second == std::to_string(2 * e.size()));
            CHECK(third == std::to_string(3 * e.size()));
            wait_for(called, 1);
        }
    });
}

TEST_CASE_TEMPLATE("callbacks and coroutines get the reason of a refusal", Devices, every_kind) {
    on_engines<Devices>(
        [](auto& e) {
            const tensor<float> x(filled(e.rank() == 0 ? 3 : 4, 1.0f)), y(filled(3, 1.0f));
            std::atomic<int> called{0};
            std::string why, awaited;
            {
                auto odd = e.allreduce("x", x.view(), hvd::sum, {.then = [&](auto failure) {
                                           why = text_of<hvd::mismatch_error>(
                                               [&] { std::rethrow_exception(failure); });
                                           ++called;
                                       }});
                // The exception dies on this thread, where ThreadSanitizer expects it.
                wait_for(called, 1);
                CHECK_THROWS_AS(odd.wait(), hvd::mismatch_error);
            }
            CHECK(has(why, "rank 0: [3]"));
            await(e.allreduce("x", x.view(), hvd::sum), x, awaited);
            while (awaited.empty()) e.run_ready();
            CHECK(has(awaited, "rank 0: [3]"));
            e.allreduce("y", y.view(), hvd::sum).wait();  // nobody has left an error unseen
            CHECK(called == 1);
            CHECK_THROWS_AS((void)e.allreduce("y", hvd::device_view<float>(nullptr, 3), hvd::sum,
                                              {.then = [&](auto) { ++called; }}),
                            hvd::usage_error);
            CHECK(called == 1);
        },
        2);
}

TEST_CASE_TEMPLATE("an engine that ends calls back first", Devices, every_kind) {
    for (const bool fails : {false, true})
        hvd::run_threads(3, [&](world_communicator& world) {
            const tensor<float> x(filled(100, 1.0f)), y(filled(9, 1.0f));
            std::atomic<int> called{0}, failed{0};
            std::string awaited;
            const auto count = [&](std::exception_ptr why) { ++(why ? failed : called); };
            hvd::communicator<Devices> gpus(world, {.timeout = 20s});
            {
                hvd::engine e{world, gpus};
                auto a = e.allreduce("x", x.view(), hvd::sum, {.then = count});
                if (!fails) {
                    await(e.allreduce("y", y.view(), hvd::sum), y, awaited);
                } else {
                    auto open = e.allreduce("only " + std::to_string(world.rank()), y.view(),
                                            hvd::sum, {.then = count});
                    a.wait();
                    world.barrier();
                    e.fail(nullptr);
                    CHECK_THROWS_AS(open.wait(), hvd::peer_error);
                }
            }
            CHECK(called == 1);
            CHECK(failed == (fails ? 1 : 0));
            CHECK(awaited == (fails ? "" : "3"));
        });
    check_clean();
}

TEST_CASE("callbacks are told that a device failed, or that ranks came too late") {
    for (const bool late : {false, true}) {
        hvd::run_threads(2, [&](world_communicator& world) {
            const user_stream user;
            const tensor<float> x(filled(10, 1.0f));
            std::atomic<int> called{0};
            std::string why, awaited;
            hvd::communicator<hvd::nccl> gpus(world, {.timeout = late ? 200ms : 20s * slowness});
            hvd::engine e{world, gpus};
            gate held(user.handle);  // freeing memory waits for it
            auto a = e.allreduce(
                "x", x.view(), hvd::sum,
                {.stream = user.handle, .then = [&](std::exception_ptr failure) {
                     why = text_of<hvd::error>([&] { std::rethrow_exception(failure); });
                     ++called;
                 }});
            if (!late) world.barrier();  // both have submitted it
            if (!late && world.rank() == 0) e.fail(nullptr);
            wait_for(called, 1);
            CHECK(has(why, late ? "did not come in time" : "rank 0 failed"));
            CHECK_THROWS_AS(a.wait(), hvd::error);
            held.open();
            cudaDeviceSynchronize();
        });
        check_clean();
    }
}

TEST_CASE("the timeout of a tensor holds for the work of its device") {
    hvd::run_threads(2, [&](world_communicator& world) {
        const user_stream user;
        const tensor<float> x(filled(10, 1.0f));
        hvd::communicator<hvd::nccl> gpus(world, {.timeout = 600s});
        hvd::engine e{world, gpus};
        gate held(user.handle);
        auto a = e.allreduce("x", x.view(), hvd::sum,
                             {.timeout = 300ms * slowness, .stream = user.handle});
        CHECK_THROWS_AS(a.wait(), hvd::peer_error);
        held.open();
        cudaDeviceSynchronize();
    });
    check_clean();
}

// ---- observers ----------------------------------------------------------------------------------

TEST_CASE_TEMPLATE("an observer is told of the tensors of a device, each until its work is done",
                   Devices, hvd::nccl, hvd::staged<observed>) {
    hvd::run_threads<observed>(3, [](hvd::communicator<observed>& world) {
        hvd::communicator<Devices> gpus(world, {.timeout = 20s});
        hvd::engine e{world, gpus};
        const user_stream user;
        for (std::size_t step = 0; step < steps; ++step) {
            const tensor<float> x(filled(30, 1.0f));
            std::vector<float> y(30, 1);
            auto a = e.allreduce("device", x.view(), hvd::sum);
            e.allreduce("host", y, hvd::sum).wait();
            a.wait(user.handle);
            CHECK(a.counts().empty());
            cudaStreamSynchronize(user.handle);
        }
        CHECK(text_of<hvd::mismatch_error>([&] {
                  const tensor<float> odd(filled(e.rank() == 0 ? 3 : 4, 1.0f));
                  e.allreduce("odd", odd.view(), hvd::sum).wait();
              }) != "");
        auto& seen = e.observer();
        while (seen.of("device", "complete").size() < steps) std::this_thread::yield();
        CHECK(seen.of("device", "submitted").size() == steps);
        CHECK(seen.of("device", "ready").size() >= steps);
        CHECK(seen.of("host", "complete").size() == steps);
        CHECK(seen.of("odd", "incomplete").size() == 1);
        CHECK(seen.of("odd", "complete").empty());
        for (const auto& [what, name, event] : seen.of("device", "complete")) {
            CHECK(event.on_device);
            CHECK(event.bytes == 120);
            CHECK(std::string(event.collective) == "allreduce");
            CHECK(event.made <= event.ready);
            CHECK(event.ready <= event.enqueued);
            CHECK(event.enqueued <= event.time);
        }
    });
    check_clean();
}

TEST_CASE("a timeline shows the tensors of a device") {
    using timed = hvd::observed<hvd::threads, hvd::timeline>;
    const std::string file = "device_engine.{rank}.json";
    hvd::run_threads<timed>(2, [&](hvd::communicator<timed>& world) {
        hvd::start_timeline(world, {.file = file});
        hvd::communicator<hvd::nccl> gpus(world, {.timeout = 20s});
        hvd::engine e{world, gpus};
        for (int step = 0; step < 8; ++step) {
            const tensor<float> x(filled(30, 1.0f));
            std::vector<float> y(30, 1);
            auto a = e.allreduce("device", x.view(), hvd::sum);
            e.allreduce("host", y, hvd::sum).wait();
            a.wait();
        }
        CHECK(hvd::stop_timeline(world).dropped == 0);
    });
    for (const char* name : {"device_engine.0.json", "device_engine.1.json"}) {
        std::ifstream in(name);
        const auto trace = nlohmann::json::parse(in);
        std::map<std::string, int> spans;
        int track = -1;
        for (const auto& e : trace) {
            if (e["ph"] == "M" && e["name"] == "thread_name" && e["args"]["name"] == "device")
                track = e["tid"];
            else if (e["ph"] == "X" && e["tid"] == track) ++spans[e["name"]];
        }
        CHECK(spans["allreduce"] == 8);
        CHECK(spans["communicate"] == 8);
        CHECK(spans["queue"] > 0);
        std::remove(name);
    }
    check_clean();
}

// ---- small tensors ------------------------------------------------------------------------------

TEST_CASE("small tensors of one type are one call for NCCL, and those of the host are apart") {
    on_engines_of<hvd::nccl>(
        2,
        [](auto& e) {
            const tensor<float> a{1, 2}, b{3}, c{4}, large(filled(200'000, 1.0f));
            std::vector<float> h{1};
            const int before = emulation::calls_of("ncclAllReduce");
            e.barrier("begin").wait();
            auto x = e.allreduce("a", a.view(), hvd::sum);
            auto y = e.allreduce("b", b.view(), hvd::sum);
            auto l = e.allreduce("large", large.view(), hvd::sum);
            auto z = e.allreduce("c", c.view(), hvd::sum);
            auto w = e.allreduce("h", h, hvd::sum);
            x.wait(), y.wait(), z.wait(), w.wait(), l.wait();
            e.barrier("end").wait();
            CHECK(emulation::calls_of("ncclAllReduce") - before == 2 * e.size());
            CHECK(a.values() == std::vector<float>{2, 4});
            CHECK(c.values() == std::vector<float>{8});
            CHECK(large.values() == filled(200'000, 2.0f));
            CHECK(h[0] == 2);
            e.barrier("last").wait();
        },
        {.cycle_time = std::chrono::milliseconds(300)});
}

namespace {

// Values of each rank whose sums are rounded.
template <class T>
std::vector<T> uneven(std::size_t count, int rank) {
    std::vector<T> values;
    for (std::size_t i = 0; i < count; ++i)
        values.push_back(T(0.1f * float(i % 97 + 1) / float(rank + 3)));
    return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Reduces views of odd lengths at odd places, and a group, in one unit or each in its own.
template <class T, class Engine>
std::vector<std::vector<T>> reduce_all(Engine& e, const auto& op) {
    const std::size_t sizes[] = {1, 7, 64, 333, 5'000};
    std::vector<std::unique_ptr<tensor<T>>> all;
    std::vector<hvd::named_device_request> requests;
    for (const std::size_t n : sizes)
        all.push_back(std::make_unique<tensor<T>>(uneven<T>(n + 2, e.rank())));
    const tensor<T> out(filled(64, T(0.0f)));
    e.barrier().wait();
    for (std::size_t i = 0; i < all.size(); ++i) {
        const auto name = std::to_string(i);
        const auto view = hvd::device_view(all[i]->data() + 1, sizes[i]);
        if (i == 2) requests.push_back(e.allreduce(name, view, out.view(), op));
        else requests.push_back(e.allreduce(name, view, op));
    }
    const tensor<T> p(uneven<T>(5, e.rank())), q(uneven<T>(6, e.rank()));
    requests.push_back(e.allreduce("group", hvd::fuse(p.view(), q.view()), op));
    for (auto& r : requests) r.wait();
    std::vector<std::vector<T>> results{out.values(), p.values(), q.values()};
    for (const auto& x : all) results.push_back(x->values());
    return results;
}

template <class T>
void compare_packed(auto& together, auto& apart, const auto& op) {
    const auto packed = reduce_all<T>(together, op), alone = reduce_all<T>(apart, op);
    for (std::size_t i = 0; i < alone.size(); ++i) CHECK(same_bits(packed[i], alone[i]));
}

}  // namespace

TEST_CASE_TEMPLATE("tensors that are packed have the bits of those that are not", Devices,
                   every_kind) {
    for (int ranks = 2; ranks <= 4; ++ranks)
        hvd::run_threads(ranks, [](world_communicator& world) {
            hvd::communicator<Devices> gpus(world, {.timeout = 20s});
            hvd::engine together{world, gpus, {.cycle_time = std::chrono::milliseconds(30)}};
            hvd::engine apart{world, gpus, {.fusion_threshold = 0}};
            compare_packed<float>(together, apart, hvd::average);
            compare_packed<hvd::bfloat16>(together, apart, hvd::sum);
            compare_packed<double>(together, apart, hvd::max);
        });
    check_clean();
}

TEST_CASE("a step that repeats allocates no memory for packing and copies no tiles") {
    on_engines_of<hvd::nccl>(3, [](auto& e) {
        const tensor<float> a(filled(50, 1.0f)), b(filled(70, 1.0f));
        const auto step = [&] {
            auto x = e.allreduce("a", a.view(), hvd::average);
            auto y = e.allreduce("b", b.view(), hvd::average);
            x.wait(), y.wait();
        };
        for (int i = 0; i < 8; ++i) step();
        e.barrier("all are here").wait();
        const auto counts = [] {
            return std::vector<int>{emulation::calls_of("cudaMalloc"),
                                    emulation::calls_of("cudaHostAlloc"),
                                    emulation::calls_of("cudaMemcpyAsync")};
        };
        const std::vector<int> before = counts();
        e.barrier("begin").wait();
        for (int i = 0; i < 8; ++i) step();
        e.barrier("end").wait();
        CHECK(counts() == before);
        e.barrier("last").wait();
        CHECK((a.values() == filled(50, 1.0f) && b.values() == filled(70, 1.0f)));
    });
}

TEST_CASE("a program without kernels packs nothing") {
    const auto tiles = std::exchange(hvd::detail::kernels.tiles, nullptr);
    on_engines_of<hvd::nccl>(2,
                             [](auto& e) {
                                 const tensor<float> a{1, 2}, b{3};
                                 auto x = e.allreduce("a", a.view(), hvd::sum);
                                 auto y = e.allreduce("b", b.view(), hvd::sum);
                                 x.wait(), y.wait();
                                 CHECK(a.values() == std::vector<float>{2, 4});
                                 CHECK(b.values() == std::vector<float>{6});
                             },
                             {.cycle_time = std::chrono::milliseconds(50)});
    hvd::detail::kernels.tiles = tiles;
}

TEST_CASE_TEMPLATE("packed tensors of ranks that have joined, and of shapes that change", Devices,
                   every_kind) {
    on_engines<Devices>([](auto& e) {
        for (int s = 0; s <= e.rank() + 3; ++s) {
            const std::size_t count = std::size_t(10 << s);
            const tensor<float> a(filled(count, 1.0f)), b(filled(count + 1, 2.0f));
            auto x = e.allreduce("a" + std::to_string(s), a.view(), hvd::sum);
            auto y = e.allreduce("b" + std::to_string(s), b.view(), hvd::sum);
            x.wait(), y.wait();
            const float there = float(s <= 3 ? e.size() : e.size() - (s - 3));
            CHECK(a.values() == filled(count, there));
            CHECK(b.values() == filled(count + 1, 2 * there));
        }
        e.join().wait();
    });
}

}  // namespace engine_work_tests
