// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// communicator<nccl> as its users make and use it: from the host communicator `world`, which is of
// forked processes on a real GPU, and of threads on the emulation. Each rank reports what is wrong.

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <hvd/engine_device.hpp>
#include <hvd/nccl.hpp>

#include "driver.hpp"
#include "peer_error.hpp"
#include "tensor.hpp"

namespace gpu_suite {

using device_test::numbers, device_test::peer_error_of, device_test::tensor;
using gpu_communicator = hvd::communicator<hvd::nccl>;
using reporter = std::function<void(bool right, const char* what)>;

constexpr hvd::communicator_options patient{.timeout = std::chrono::seconds(60)};

template <class T>
void reductions(gpu_communicator& gpus, std::size_t count, const reporter& report) {
    const int n = gpus.size(), r = gpus.rank();
    const tensor<T> x(numbers<T>(count, r)), y(numbers<T>(count, r)), z(numbers<T>(count, r));
    gpus.allreduce(x.view(), hvd::sum);
    gpus.allreduce(y.view(), hvd::average);
    gpus.plan_allreduce(hvd::fuse(z.view(), x.view()), hvd::max).run();
    const auto one = numbers<T>(count, 0), sums = x.values(), means = y.values(), most = z.values();
    bool right = true;
    for (std::size_t i = 0; i < count; ++i) {
        const float a = float(one[i]), mean = a * float(n + 1) / 2;
        right =
            right && float(sums[i]) == a * float(n * (n + 1) / 2) && float(most[i]) == a * float(n);
        right = right &&
                std::abs(float(means[i]) - mean) <= mean * (sizeof(T) == 2 ? 0x1p-8f : 0x1p-22f);
    }
    report(right, "a reduction");
}

inline void movements(gpu_communicator& gpus, const reporter& report) {
    const int n = gpus.size(), r = gpus.rank();
    std::vector<int> out, in;
    for (int p = 0; p < n; ++p) out.push_back(10 * r + p), in.push_back(10 * p + r);
    const tensor<int> send(out), receive(std::vector<int>(out.size(), -1)), part{-1};
    gpus.alltoall(send.view(), hvd::into(receive.view()));
    report(receive.values() == in, "alltoall");
    gpus.scatter(send.view(), hvd::into(part.view()), hvd::root{n - 1});
    report(part.values()[0] == 10 * (n - 1) + r, "scatter");
    gpus.allgather(part.view(), hvd::into(receive.view()));
    report(receive.values().front() == 10 * (n - 1), "allgather");
    gpus.broadcast(send.view(), hvd::root{n - 1});
    report(send.values().front() == 10 * (n - 1), "broadcast");
    gpus.barrier();
}

// Plans pack, cast and move large tensors, at offsets that are not aligned to 16 bytes.
inline void plans(gpu_communicator& gpus, const reporter& report) {
    const int n = gpus.size(), r = gpus.rank();
    const tensor<float> a(numbers<float>(1003, r)), large(numbers<float>(1'000'003, r));
    const tensor<hvd::bfloat16> b(numbers<hvd::bfloat16>(77, r));
    const auto odd = hvd::device_view(a.data() + 1, 1001);
    auto plan =
        gpus.plan_allreduce(hvd::fuse(odd, b.view(), hvd::device_view(large.data() + 3, 1'000'000)),
                            hvd::average, {}, hvd::codec::cast<hvd::bfloat16>);
    plan.run();
    report(a.values()[0] == 0 && a.values()[1] == 0.5f * float(n + 1) &&
               a.values()[1002] == float(1002 % 11 * (r + 1)),
           "a plan's edges");
    report(large.values()[500'000] == float(500'000 % 11) * 0.5f * float(n + 1),
           "a plan's large tensor");
}

// A captured plan runs whenever the graph is launched.
inline void graph(gpu_communicator& gpus, const reporter& report) {
    cudaStream_t stream{};
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    const float n = float(gpus.size());
    const tensor<float> a{1}, b{2};
    cudaStreamSynchronize(nullptr);  // the stream does not wait for the copies
    auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum);
    plan.run(stream);  // NCCL connects before the capture
    cudaGraph_t captured{};
    cudaGraphExec_t launched{};
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    (void)plan.run_async(stream);
    cudaStreamEndCapture(stream, &captured);
    cudaGraphInstantiate(&launched, captured, 0);
    cudaGraphLaunch(launched, stream);
    cudaGraphLaunch(launched, stream);
    cudaStreamSynchronize(stream);
    report(a.values()[0] == n * n * n && b.values()[0] == 2 * n * n * n, "a captured plan");
    cudaGraphExecDestroy(launched);
    cudaGraphDestroy(captured);
    cudaStreamDestroy(stream);
}

inline void arena(gpu_communicator& gpus, const reporter& report) {
    const int r = gpus.rank();
    hvd::device_arena memory(gpus, std::size_t(4) << 20);
    const auto x = memory.tensor<float>(hvd::shape(1000)), y = memory.tensor<float>(hvd::shape(24));
    const std::vector<float> mine(1000, float(r + 1));
    cudaMemcpy(x.data(), mine.data(), 4000, cudaMemcpyHostToDevice);
    cudaMemcpy(y.data(), mine.data(), 96, cudaMemcpyHostToDevice);
    auto plan = gpus.plan_allreduce(hvd::fuse(x, y), hvd::sum);
    plan.run();
    float got = 0;
    cudaMemcpy(&got, y.data() + 23, sizeof got, cudaMemcpyDeviceToHost);
    report(got == float(gpus.size() * (gpus.size() + 1) / 2) && plan.packed_bytes() == 0,
           "an arena");
}

// Copies each round's numbers to a tensor, sums it by `call(tensor, stream)` and keeps an element
// of the sum, all on the stream. The host waits in the call and at the end alone.
template <class Call>
void rounds_on(cudaStream_t stream, gpu_communicator& gpus, const reporter& report, Call call) {
    constexpr std::size_t count = 200'000, rounds = 10;
    const tensor<float> x(std::vector<float>(count, 0.0f)), kept(std::vector<float>(rounds, 0.0f));
    std::vector<float> mine(rounds * count), expected;
    for (std::size_t i = 0; i < rounds; ++i) {
        for (std::size_t j = 0; j < count; ++j)
            mine[i * count + j] = float(i + 1) * float(gpus.rank() + 1);
        expected.push_back(float(i + 1) * float(gpus.size() * (gpus.size() + 1) / 2));
    }
    const tensor<float> all(mine);
    cudaStreamSynchronize(nullptr);
    for (std::size_t i = 0; i < rounds; ++i) {
        cudaMemcpyAsync(x.data(), all.data() + i * count, count * sizeof(float),
                        cudaMemcpyDeviceToDevice, stream);
        call(x, stream);
        cudaMemcpyAsync(kept.data() + i, x.data() + count - 1, sizeof(float),
                        cudaMemcpyDeviceToDevice, stream);
    }
    cudaStreamSynchronize(stream);
    report(kept.values() == expected, "rounds on a default stream");
}

// The legacy default stream, by both of its names, and that of the thread.
inline void default_streams(gpu_communicator& gpus, const reporter& report) {
    for (const cudaStream_t stream : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
        rounds_on(stream, gpus, report, [&](const auto& x, cudaStream_t s) {
            gpus.allreduce_async(x.view(), hvd::sum, {.stream = s}).wait(s);
        });
        std::vector<hvd::device_request> pending;  // their stream waits by itself
        rounds_on(stream, gpus, report, [&](const auto& x, cudaStream_t s) {
            pending.push_back(gpus.allreduce_async(x.view(), hvd::sum, {.stream = s}));
        });
        for (auto& request : pending) request.wait();
        // A call that names no stream comes after the work of both.
        rounds_on(stream, gpus, report,
                  [&](const auto& x, cudaStream_t) { gpus.allreduce(x.view(), hvd::sum); });
    }
}

// Sums `rank + 1` over a part of the ranks of `whole`.
inline void sum_over(gpu_communicator& part, int rank_in_whole, float expected,
                     const reporter& report, const char* what) {
    const tensor<float> x{float(rank_in_whole + 1)};
    part.allreduce(x.view(), hvd::sum);
    report(x.values()[0] == expected, what);
}

inline void parts(gpu_communicator& gpus, const reporter& report) {
    const int n = gpus.size(), r = gpus.rank();
    float expected = 0;
    for (int p = r % 2; p < n; p += 2) expected += float(p + 1);
    gpu_communicator halves = gpus.split(r % 2, -r);
    report(halves.rank() == (n - 1 - r) / 2, "the order of a split");
    sum_over(halves, r, expected, report, "a split");
    const int ends[] = {0, n - 1};
    gpu_communicator outer = gpus.subset(std::span(ends).first(n == 1 ? 1 : 2));
    report(bool(outer) == (r == 0 || r == n - 1), "members of a subset");
    if (outer) sum_over(outer, r, n == 1 ? 1 : float(1 + n), report, "a subset");
    gpu_communicator node = gpus.local();
    report(node.size() >= 1, "local");
    arena(halves, report);
    sum_over(gpus, r, float(n * (n + 1) / 2), report, "the whole after its parts");
}

// A communicator with a captured plan is given up: its plan refuses another capture, all ends, and
// the next communicator of the ranks is captured as the first one was.
template <class World>
void graph_after_an_error(World& world, const reporter& report) {
    const tensor<float> a{1}, b{2};
    cudaStream_t stream{};
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    {
        gpu_communicator gpus(world, {.timeout = std::chrono::seconds(2)});
        const bool absent = world.size() > 1 && world.rank() + 1 == world.size();
        auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::max);
        graph(gpus, report);
        plan.run(stream);
        if (world.size() == 1) gpus.abort();
        else if (!absent)
            report(!peer_error_of([&] { gpus.allreduce(a.view(), hvd::max); }).empty(),
                   "a call without the last rank ends after a graph was launched");
        if (!absent) {
            cudaGraph_t captured{};
            cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
            report(!peer_error_of([&] { (void)plan.run_async(stream); }).empty(),
                   "a plan of a given-up communicator is not captured");
            cudaStreamEndCapture(stream, &captured);
            if (captured != nullptr) cudaGraphDestroy(captured);
            static_cast<void>(cudaGetLastError());  // the capture may be invalid
        }
        world.barrier();
    }
    cudaStreamDestroy(stream);
    gpu_communicator next(world, patient);
    graph(next, report);
    next.barrier();
}

// The last rank leaves out a call. The others give up at their timeout, and so does it.
template <class World>
void timeout(World& world, const reporter& report) {
    gpu_communicator gpus(world, patient);
    const tensor<float> x{1};
    gpus.allreduce(x.view(), hvd::sum);  // NCCL has connected the ranks
    const bool absent = gpus.rank() == gpus.size() - 1;
    if (!absent) {
        const std::string late = peer_error_of([&] {
            gpus.allreduce(x.view(), hvd::sum, {.timeout = std::chrono::milliseconds(500)});
        });
        report(!late.empty(), "a call without the last rank ends at its timeout");
        report(!peer_error_of([&] { gpus.barrier(); }).empty(), "a given-up communicator refuses");
    }
    world.barrier();
}

// The last rank leaves out a call that only a stream waits for, or the host. Another thread of the
// process frees memory meanwhile: CUDA keeps it, and maybe this one, until the call ends.
template <class World>
void timeout_beside_a_free(World& world, bool by_stream, const reporter& report) {
    gpu_communicator gpus(world, {.timeout = std::chrono::seconds(2)});
    const tensor<float> x{1};
    cudaStream_t stream{};
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    void* memory = nullptr;
    cudaMalloc(&memory, 64);
    gpus.allreduce(x.view(), hvd::sum);
    world.barrier();
    if (gpus.rank() + 1 < gpus.size()) {
        auto request = gpus.allreduce_async(x.view(), hvd::sum);
        if (by_stream) request.wait(stream);
        std::thread freeing([memory, device = hvd::detail::device_of_this_thread(0)] {
            cudaSetDevice(device);
            cudaFree(memory);
        });
        const std::string late = peer_error_of([&] {
            if (!by_stream) request.wait();
            freeing.join();
            gpus.barrier();
        });
        if (freeing.joinable()) freeing.join();
        report(!late.empty(), "a timeout holds while another thread frees memory");
    }
    world.barrier();
    if (gpus.rank() + 1 == gpus.size()) cudaFree(memory);
    cudaStreamDestroy(stream);
}

// The last rank leaves out a call. Meanwhile a plan ends on the others, and a communicator, whose
// memory CUDA frees when the device has nothing to do any more.
template <class World>
void timeout_beside_ends(World& world, const reporter& report) {
    gpu_communicator gpus(world, {.timeout = std::chrono::seconds(2)});
    std::optional<gpu_communicator> other(std::in_place, world, patient);
    const tensor<float> x{1}, a{1}, b{2};
    auto plan = other->plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum);
    plan.run();
    gpus.allreduce(x.view(), hvd::sum);
    world.barrier();
    if (gpus.rank() + 1 < gpus.size()) {
        auto request = gpus.allreduce_async(x.view(), hvd::sum);
        plan = {};
        other.reset();
        report(!peer_error_of([&] { request.wait(); }).empty(),
               "a timeout holds while a plan and a communicator end");
    }
    world.barrier();
}

// The last rank gives the communicator up, and ends what NCCL had registered of it, while the calls
// of the others go on. These may end with garbage, but no GPU fails.
template <class World>
void memory_after_an_error(World& world, const reporter& report) {
    constexpr std::size_t count = 500'000;
    std::optional<gpu_communicator> gpus(
        std::in_place, world, hvd::communicator_options{.timeout = std::chrono::seconds(2)});
    const bool ends_first = gpus->rank() + 1 == gpus->size();
    std::optional<tensor<float>> pool(std::in_place, std::vector<float>(count, 1.0f));
    const tensor<float> a{1}, b{2};
    auto registered = gpus->register_memory(pool->view());
    auto plan = gpus->plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum);
    std::optional<hvd::device_arena> arena(std::in_place, *gpus, count * sizeof(float));
    const auto x = arena->tensor<float>(hvd::shape(count));
    cudaMemcpy(x.data(), pool->data(), count * sizeof(float), cudaMemcpyDeviceToDevice);
    const auto call_all = [&] {
        gpus->allreduce(x, hvd::max);
        gpus->allreduce(pool->view(), hvd::max);
        plan.run();
    };
    call_all();
    world.barrier();
    if (ends_first) gpus->abort();
    else static_cast<void>(peer_error_of(call_all));
    plan = {};
    arena.reset();
    registered = {};
    const tensor<float> next(std::vector<float>(count, -1.0f));  // maybe in the same place
    world.barrier();  // every rank has given its calls up: the memory of the caller may end now
    pool.reset();
    gpus.reset();
    report(cudaDeviceSynchronize() == cudaSuccess, "a GPU whose peers have freed memory");
    gpu_communicator later(world, patient);
    later.allreduce(next.view(), hvd::sum);
    report(next.values()[count - 1] == -float(world.size()), "the next communicator");
}

// A stream that waits for a call without the last rank goes on after the timeout.
template <class World>
void timeout_of_a_stream(World& world, const reporter& report) {
    gpu_communicator gpus(world, {.timeout = std::chrono::seconds(1)});
    const tensor<float> x{1};
    gpus.allreduce(x.view(), hvd::sum);
    if (gpus.rank() + 1 < gpus.size()) {
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        gpus.allreduce_async(x.view(), hvd::sum, {.stream = stream}).wait(stream);
        cudaStreamSynchronize(stream);
        report(!peer_error_of([&] { gpus.barrier(); }).empty(), "the next call tells the reason");
        cudaStreamDestroy(stream);
    }
    world.barrier();
}

// An error that the caller has not looked at is none of hvd's, and stays. hvd leaves none behind.
inline void errors_of_the_caller(gpu_communicator& gpus, const reporter& report) {
    const tensor<float> x{1}, y{2};
    auto both = gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::sum);
    static_cast<void>(cudaGetLastError());
    for (int i = 0; i < 20; ++i) gpus.allreduce_async(y.view(), hvd::max).wait();
    report(cudaGetLastError() == cudaSuccess, "hvd leaves no error behind");
    static_cast<void>(cudaSetDevice(99));
    both.run();
    report(cudaGetLastError() == cudaErrorInvalidDevice, "the caller's error stays");
}

// A capture that the caller has begun goes on beside calls on other streams.
inline void capture_of_the_caller(gpu_communicator& gpus, const reporter& report) {
    const tensor<float> x{1}, y{2};
    cudaStream_t captured{}, stream{};
    cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    gpus.barrier();  // where ranks are threads, one's capture forbids the others' allocations
    cudaGraph_t graph{};
    cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal);
    gpus.allreduce(x.view(), hvd::max, {.stream = stream});
    gpus.allreduce_async(y.view(), hvd::max, {.stream = stream}).wait();
    const cudaError_t ended = cudaStreamEndCapture(captured, &graph);
    report(ended == cudaSuccess, "the caller's capture goes on");
    gpus.barrier();
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaStreamDestroy(captured);
    cudaStreamDestroy(stream);
}

// Rank 0 ends all calls.
template <class World>
void abort(World& world, const reporter& report) {
    gpu_communicator gpus(world, {.timeout = std::chrono::seconds(20)});
    gpus.barrier();
    if (gpus.rank() == 0) gpus.abort();
    report(gpus.rank() != 0 || !peer_error_of([&] { gpus.barrier(); }).empty(),
           "an aborted communicator refuses");
    world.barrier();
}

// The last rank calls `leave` and is not there any more. The others go on without it.
template <class World>
void lost_rank(World& world, const std::function<void()>& leave, const reporter& report) {
    gpu_communicator gpus(world, patient);
    const int n = gpus.size(), r = gpus.rank();
    gpus.barrier();
    if (r == n - 1) return leave();
    const tensor<float> x{float(r + 1)};
    const std::string lost = peer_error_of(
        [&] { gpus.allreduce(x.view(), hvd::sum, {.timeout = std::chrono::seconds(3)}); });
    report(!lost.empty(), "a lost rank is noticed");
    const int excluded[] = {n - 1};
    gpu_communicator rest = gpus.shrink(excluded);
    report(rest.size() == n - 1 && rest.rank() == r, "the ranks of a shrunk communicator");
    sum_over(rest, r, float((n - 1) * n / 2), report, "a shrunk communicator");
}

// The ranks go on without the last one, which lives.
template <class World>
void shrunk(World& world, const reporter& report) {
    gpu_communicator gpus(world, patient);
    const int n = gpus.size(), r = gpus.rank();
    const tensor<float> x{1};
    gpus.allreduce(x.view(), hvd::sum);
    if (r + 1 < n) {
        gpu_communicator rest = gpus.shrink({n - 1});
        report(rest.size() == n - 1 && rest.rank() == r, "the ranks that go on");
        sum_over(rest, r, float((n - 1) * n / 2), report, "their sum");
        arena(rest, report);
        gpu_communicator last = rest.split(r % 2, r);
        sum_over(last, 0, float((n - 1 - r % 2 + 1) / 2), report, "a part of them");
    }
    world.barrier();
    if (r + 1 == n) gpus.abort();
}

// An engine with tensors of the host and of the device, in another order on each rank.
template <class World>
void named(World& world, gpu_communicator& gpus, const reporter& report) {
    const int n = gpus.size(), r = gpus.rank();
    hvd::engine e{world, gpus};
    cudaStream_t stream{};
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int step = 0; step < 10; ++step) {
        const tensor<float> a(numbers<float>(1001, r)), b{float(r)},
            all(std::vector<float>(std::size_t(n), 0.0f));
        std::vector<float> host{float(r + 1)};
        cudaStreamSynchronize(nullptr);  // the stream does not wait for the copies
        const auto on_device = [&] {
            return e.allreduce("a", a.view(), hvd::average, {.stream = stream});
        };
        hvd::named_device_request first;
        if (r % 2 == 0) first = on_device();
        auto second = e.allgather("b", b.view(), hvd::into(all.view()));
        auto third = e.allreduce("host", host, hvd::sum, {.priority = step % 2});
        if (r % 2 == 1) first = on_device();
        first.wait(stream);
        cudaStreamSynchronize(stream);
        report(a.values()[1] == 0.5f * float(n + 1), "an engine's mean");
        second.wait();
        third.wait();
        report(all.values().back() == float(n - 1), "an engine's allgather");
        report(host[0] == float(n * (n + 1) / 2), "an engine's tensor of the host");
    }
    const tensor<float> last{float(r + 1)};
    if (r > 0) e.allreduce("last", last.view(), hvd::sum).wait();
    report(e.join().wait() >= 0 && (r == 0 || last.values()[0] == float(n * (n + 1) / 2 - 1)),
           "an engine's sum without a rank that has joined");
    cudaStreamDestroy(stream);
}

// All threads of this process have used the devices of its ranks alone.
template <class World>
void contexts(World& world, const reporter& report) {
    const int mine[] = {int(getpid()), hvd::detail::device_of_this_thread(0)};
    std::vector<int> all(2 * std::size_t(world.size()));
    world.allgather(mine, hvd::into(all));
    std::set<int> own;
    for (std::size_t i = 0; i < all.size(); i += 2)
        if (all[i] == mine[0]) own.insert(all[i + 1]);
    int devices = 0;
    cudaGetDeviceCount(&devices);
    for (int device = 0; device < devices; ++device)
        report(device_test::has_context(device) == own.contains(device),
               own.contains(device) ? "a context of the rank's device"
                                    : "no context of another device");
}

template <class World>
struct promise {
    const char* name;
    void (*check)(World&, gpu_communicator&, const reporter&);
};

// The promises of a healthy communicator. The contexts come last: they are those of all before.
template <class World>
inline constexpr promise<World> promises_of_healthy[] = {
    {"healthy",
     [](World&, gpu_communicator& gpus, const reporter& report) {
         for (const std::size_t count : {std::size_t(1), std::size_t(1001), std::size_t(300'000)}) {
             reductions<float>(gpus, count, report);
             reductions<hvd::bfloat16>(gpus, count, report);
             reductions<hvd::float16>(gpus, count, report);
         }
         movements(gpus, report);
     }},
    {"plans", [](World&, gpu_communicator& gpus, const reporter& report) { plans(gpus, report); }},
    {"graph", [](World&, gpu_communicator& gpus, const reporter& report) { graph(gpus, report); }},
    {"arena", [](World&, gpu_communicator& gpus, const reporter& report) { arena(gpus, report); }},
    {"split", [](World&, gpu_communicator& gpus, const reporter& report) { parts(gpus, report); }},
    {"engine", [](World& world, gpu_communicator& gpus,
                  const reporter& report) { named(world, gpus, report); }},
    {"default streams",
     [](World&, gpu_communicator& gpus, const reporter& report) { default_streams(gpus, report); }},
    {"errors of the caller", [](World&, gpu_communicator& gpus,
                                const reporter& report) { errors_of_the_caller(gpus, report); }},
    {"capture of the caller", [](World&, gpu_communicator& gpus,
                                 const reporter& report) { capture_of_the_caller(gpus, report); }},
    {"contexts",
     [](World& world, gpu_communicator&, const reporter& report) { contexts(world, report); }},
};

// Calls end_of(i) when the ranks have checked the i-th promise.
template <class World, class End>
void healthy(World& world, const reporter& report, End end_of) {
    hvd::pin_device(world, {.share = true});
    gpu_communicator gpus(world, patient);
    for (std::size_t i = 0; const auto& promise : promises_of_healthy<World>) {
        promise.check(world, gpus, report);
        end_of(i++);
    }
    gpus.barrier();
}

}  // namespace gpu_suite
