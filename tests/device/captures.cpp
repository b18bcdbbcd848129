// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Somebody captures a stream into a CUDA graph while hvd works on others: both go on. Plans become
// a part of a graph on every kind of stream.

#include <memory>
#include <thread>

#include "support.hpp"

namespace captures_tests {

using namespace device_test;

namespace {

using world_type = hvd::communicator<hvd::threads>;
using on_one_node = hvd::hierarchical<hvd::nccl, hvd::threads>;
#define every_backend hvd::nccl, hvd::staged<hvd::threads>, on_one_node

struct user_stream {
    cudaStream_t handle{};
    explicit user_stream(unsigned flags = cudaStreamNonBlocking) {
        cudaStreamCreateWithFlags(&handle, flags);
    }
    user_stream(const user_stream&) = delete;
    ~user_stream() { cudaStreamDestroy(handle); }
};

// A capture of nothing, by the thread that makes it.
class capture {
public:
    explicit capture(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal)
        : stream_(stream) {
        CHECK(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
    }
    capture(const capture&) = delete;
    ~capture() {
        cudaGraph_t graph{};
        CHECK(cudaStreamEndCapture(stream_, &graph) == cudaSuccess);
        if (graph != nullptr) cudaGraphDestroy(graph);
    }

private:
    cudaStream_t stream_;
};

// The tensors of a rank's work: they are filled before a capture begins.
struct tensors {
    explicit tensors(int rank) : x{float(rank)}, y{float(rank), 1}, all(std::vector<float>(4)) {}
    tensor<float> x, y, all;
};

template <class Backend>
void work(world_type& world, const tensors& t, cudaStream_t stream) {
    hvd::communicator<Backend> gpus(world, {.timeout = 60s});
    for (const hvd::device_stream given : {hvd::device_stream(), hvd::device_stream(stream)}) {
        gpus.allreduce(t.x.view(), hvd::max, {.stream = given});
        auto polled = gpus.broadcast_async(t.x.view(), hvd::root{0}, {.stream = given});
        while (!polled.test()) std::this_thread::yield();
        gpus.allreduce_async(t.y.view(), hvd::max, {.stream = given}).wait(stream);
        auto plan = gpus.plan_allreduce(hvd::fuse(t.x.view(), t.y.view()), hvd::max);
        plan.run(given);
        static_cast<void>(plan.run_async(given));  // waited for by its destructor
        gpus.barrier({.stream = given});
    }
    if constexpr (requires { Backend::has_arenas; }) hvd::device_arena arena(gpus, 4096);
    auto part = gpus.split(0, gpus.rank());
    part.allreduce(t.x.view(), hvd::max);
    auto on_host = hvd::through_host(t.all.view());
    world.allreduce(on_host, hvd::sum);
}

template <class F>
void on_worlds(F f) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks, f);
        CHECK(emulation::live_objects() == 0);
        CHECK(emulation::disagreements().empty());
        emulation::reset();
    }
}

// Calls f on each rank between the begin and the end of a capture.
template <class F>
void while_captured(world_type& world, bool here, cudaStream_t stream, F f) {
    world.barrier();
    {
        std::unique_ptr<capture> made;
        if (here) made = std::make_unique<capture>(stream);
        world.barrier();
        f();
        world.barrier();
    }
    world.barrier();
}

}  // namespace

TEST_CASE_TEMPLATE("this or another thread captures a stream in global mode meanwhile", Backend,
                   every_backend) {
    on_worlds([](world_type& world) {
        const tensors t(world.rank());
        const user_stream s, other;
        cudaDeviceSynchronize();
        while_captured(world, world.rank() == 0, other.handle,
                       [&] { work<Backend>(world, t, s.handle); });
        CHECK(t.y.values() == std::vector<float>{float(world.size() - 1), 1});
    });
}

TEST_CASE_TEMPLATE("each rank captures a stream that the default stream waits for", Backend,
                   hvd::nccl, on_one_node) {
    on_worlds([](world_type& world) {
        const tensor<float> x{float(world.rank())};
        const user_stream blocking(cudaStreamDefault), s;
        cudaDeviceSynchronize();
        for (const cudaStream_t captured : {blocking.handle, cudaStreamPerThread})
            while_captured(world, true, captured, [&] {
                hvd::communicator<Backend> gpus(world, {.timeout = 60s});
                gpus.allreduce(x.view(), hvd::max);
                gpus.allreduce(x.view(), hvd::max, {.stream = s.handle});
                // The default stream can't be used then, which CUDA says.
                CHECK_THROWS_AS(gpus.barrier({.stream = 0}), hvd::cuda_error);
                gpus.barrier();
            });
        CHECK(x.values()[0] == float(world.size() - 1));
    });
}

TEST_CASE("a plan becomes a part of a graph on the thread's own stream and on a forked one") {
    on_gpus([](auto& gpus) {
        const tensor<float> a{1}, b{2, 2};
        auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum);
        const user_stream s;
        cudaEvent_t edge{};
        cudaEventCreateWithFlags(&edge, cudaEventDisableTiming);
        const auto launch_twice = [&](cudaStream_t stream) {
            cudaGraph_t graph{};
            cudaGraphExec_t launched{};
            CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
            cudaGraphInstantiate(&launched, graph, 0);
            for (int i = 0; i < 2; ++i) cudaGraphLaunch(launched, stream);
            cudaStreamSynchronize(stream);
            gpus.barrier();
            cudaGraphExecDestroy(launched);
            cudaGraphDestroy(graph);
        };
        const float n = float(gpus.size());
        gpus.barrier();  // the tensors are filled
        cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal);
        CHECK(!plan.run_async(cudaStreamPerThread));
        CHECK_THROWS_AS(gpus.barrier({.stream = cudaStreamPerThread}), hvd::usage_error);
        launch_twice(cudaStreamPerThread);
        CHECK(a.values()[0] == n * n);

        // As a trainer that overlaps does: the communicator's stream forks from the captured one,
        // and joins it again.
        cudaStreamBeginCapture(s.handle, cudaStreamCaptureModeThreadLocal);
        cudaEventRecord(edge, s.handle);
        cudaStreamWaitEvent(gpus.stream(), edge, 0);
        CHECK(!plan.run_async());
        CHECK_THROWS_AS(gpus.barrier(), hvd::usage_error);
        cudaEventRecord(edge, gpus.stream());
        cudaStreamWaitEvent(s.handle, edge, 0);
        launch_twice(s.handle);
        CHECK(a.values()[0] == n * n * n * n);
        CHECK(b.values()[1] == 2 * n * n * n * n);
        cudaEventDestroy(edge);
    });
}

TEST_CASE("a stream that is captured can't wait for a call outside of the graph") {
    on_gpus([](auto& gpus) {
        const tensor<float> a{1};
        const user_stream s;
        auto pending = gpus.allreduce_async(a.view(), hvd::sum);
        {
            const capture captured(s.handle, cudaStreamCaptureModeThreadLocal);
            CHECK_THROWS_AS(pending.wait(s.handle), hvd::usage_error);
            CHECK(pending);
        }
        pending.wait();
        CHECK(a.values()[0] == float(gpus.size()));
    });
}

}  // namespace captures_tests
