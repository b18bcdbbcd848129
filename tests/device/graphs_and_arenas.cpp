// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Plans in CUDA graphs, and memory that is registered with NCCL.

#include <atomic>
#include <concepts>
#include <memory>
#include <thread>

#include "support.hpp"

namespace graphs_and_arenas_tests {

using namespace device_test;

static_assert(std::movable<hvd::communicator<hvd::nccl>>);
static_assert(!std::copyable<hvd::communicator<hvd::nccl>>);
static_assert(std::movable<hvd::device_plan> && !std::copyable<hvd::device_plan>);

TEST_CASE("a plan captured into a graph runs at each launch of it") {
    on_gpus([](auto& gpus) {
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        const int n = gpus.size();
        const tensor<float> a{1}, b{2, 2}, large(std::vector<float>(200'000, 1));
        auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), large.view(), b.view()), hvd::sum);
        cudaGraph_t graph{};
        cudaGraphExec_t launched{};
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        CHECK(!plan.run_async(stream));
        CHECK_THROWS_AS(gpus.allreduce(a.view(), hvd::sum, {.stream = stream}), hvd::usage_error);
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&launched, graph, 0);
        CHECK(a.values()[0] == 1);
        for (int i = 0; i < 3; ++i) cudaGraphLaunch(launched, stream);
        cudaStreamSynchronize(stream);
        CHECK(a.values()[0] == float(n * n * n));
        CHECK(b.values()[1] == float(2 * n * n * n));
        CHECK(large.values()[199'999] == float(n * n * n));
        gpus.barrier();
        cudaGraphExecDestroy(launched);
        cudaGraphDestroy(graph);
        cudaStreamDestroy(stream);
    });
}

// A rank's stream may come to the graph long after its host has made the next call.
TEST_CASE("graphs and calls come in the order in which the hosts make them") {
    on_gpus([](auto& gpus) {
        const float n = float(gpus.size());
        const tensor<float> x{1}, y{1};
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        auto plan = gpus.plan_allreduce(x.view(), hvd::sum);
        gpus.barrier();
        cudaGraph_t graph{};
        cudaGraphExec_t launched{};
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        static_cast<void>(plan.run_async(stream));
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&launched, graph, 0);
        float sum = 1;
        for (int i = 0; i < 6; ++i) {
            const auto is_held =
                std::make_shared<std::atomic<bool>>(gpus.rank() == i % gpus.size());
            emulation::enqueue(stream, [is_held] {
                while (*is_held) std::this_thread::yield();
            });
            cudaGraphLaunch(launched, stream);
            if (!*is_held) std::this_thread::sleep_for(5ms);  // the stream is in the graph
            auto next = gpus.allreduce_async(y.view(), hvd::max);
            *is_held = false;
            next.wait();
            cudaStreamSynchronize(stream);
            sum *= n;
            CHECK(x.values()[0] == sum);
            CHECK(y.values()[0] == 1);
        }
        cudaGraphExecDestroy(launched);
        cudaGraphDestroy(graph);
        cudaStreamDestroy(stream);
    });
}

TEST_CASE("a plan without elements runs, also in a graph, and tensors without any are no part") {
    on_gpus([](auto& gpus) {
        const tensor<float> x{float(gpus.rank() + 1)};
        const auto none = hvd::device_view(static_cast<float*>(nullptr), 0),
                   also_none = hvd::device_view(x.data(), 0);
        auto empty = gpus.plan_allreduce(hvd::fuse(none, also_none), hvd::average);
        auto some = gpus.plan_allreduce(hvd::fuse(none, x.view(), also_none), hvd::max);
        empty.run();
        cudaDeviceSynchronize();  // `stream` does not come after the copy to `x`
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaGraph_t graph{};
        cudaGraphExec_t launched{};
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        CHECK(!empty.run_async(stream));
        CHECK(!some.run_async(stream));
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&launched, graph, 0);
        cudaGraphLaunch(launched, stream);
        empty.run_async(stream).wait(stream);
        cudaStreamSynchronize(stream);
        CHECK(x.values()[0] == float(gpus.size()));
        gpus.barrier();
        cudaGraphExecDestroy(launched);
        cudaGraphDestroy(graph);
        cudaStreamDestroy(stream);
    });
}

TEST_CASE("a staged plan is not captured") {
    hvd::run_threads(1, [](hvd::communicator<hvd::threads>& world) {
        hvd::communicator<hvd::staged<hvd::threads>> gpus(world);
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        const tensor<float> a{1};
        auto plan = gpus.plan_allreduce(a.view(), hvd::sum);
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        CHECK_THROWS_AS(plan.run(stream), hvd::usage_error);
        cudaGraph_t graph{};
        cudaStreamEndCapture(stream, &graph);
        cudaGraphDestroy(graph);
        cudaStreamDestroy(stream);
    });
}

TEST_CASE("the memory between two parts of an arena's tensor is left alone") {
    on_gpus([](auto& gpus) {
        hvd::device_arena arena(gpus, 4096);
        const auto x = arena.tensor<float>(hvd::shape(30));
        std::vector<float> values(30, 1);
        cudaMemcpy(x.data(), values.data(), 120, cudaMemcpyHostToDevice);
        gpus.plan_allreduce(
                hvd::fuse(hvd::device_view(x.data(), 10), hvd::device_view(x.data() + 20, 10)),
                hvd::sum)
            .run();
        cudaMemcpy(values.data(), x.data(), 120, cudaMemcpyDeviceToHost);
        for (std::size_t i = 0; i < 30; ++i)
            CHECK(values[i] == float(i < 10 || i >= 20 ? gpus.size() : 1));
    });
}

TEST_CASE("tensors of an arena are not packed, and neighbours are one call") {
    on_gpus([](auto& gpus) {
        const std::size_t n = std::size_t(gpus.size());
        {
            hvd::device_arena arena(gpus, 4096);
            const auto a = arena.tensor<float>(hvd::shape(3, 5)),
                       b = arena.tensor<float>(hvd::shape(3, 7));
            const auto c = arena.tensor<int>(hvd::shape(2));
            CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 128 == 0);
            CHECK(arena.used() == 3 * 128);
            const std::vector<float> ones(24, 1);
            cudaMemcpy(a.data(), ones.data(), 60, cudaMemcpyHostToDevice);
            cudaMemcpy(b.data(), ones.data(), 84, cudaMemcpyHostToDevice);
            const int two[] = {2, 2};
            cudaMemcpy(c.data(), two, sizeof two, cudaMemcpyHostToDevice);
            auto plan = gpus.plan_allreduce(hvd::fuse(a, b, c), hvd::sum);
            CHECK(plan.packed_bytes() == 0);
            plan.run();
            CHECK(emulation::calls_of("launch_tiles") == 0);
            float got[21];
            cudaMemcpy(got, b.data(), sizeof got, cudaMemcpyDeviceToHost);
            for (const float x : got) CHECK(x == float(n));
            try {
                (void)arena.tensor<double>(hvd::shape(1000));
                FAIL("there was room");
            } catch (const hvd::usage_error& e) {
                CHECK(std::string(e.what()).find("8000 bytes wanted, 3712 left of 4096") !=
                      std::string::npos);
            }
            CHECK_THROWS_AS((void)arena.tensor<double>(hvd::shape(std::size_t(1) << 61)),
                            hvd::usage_error);
            gpus.barrier();
            if (n > 1)
                CHECK(emulation::calls_of("ncclAllReduce") ==
                      int(n) * 3);  // floats, integers, and the barrier
        }
        if (n > 1)
            CHECK_THROWS_AS(hvd::device_arena(gpus, 128 + 128 * std::size_t(gpus.rank())),
                            hvd::mismatch_error);
    });
}

TEST_CASE("the gaps of a closed arena are forgotten, and those of others stay") {
    hvd::run_threads(1, [](hvd::communicator<hvd::threads>& world) {
        hvd::communicator<hvd::nccl> gpus(world);
        hvd::detail::device_session& session = *hvd::detail::device_access::session_of(gpus);
        const std::vector<std::byte> memory(512);
        const std::span<const std::byte> all(memory), first = all.first(256), last = all.last(256);
        session.add_arena(first);
        session.add_arena(last);
        session.add_padding(first.subspan(120, 8));
        session.add_padding(last.subspan(120, 8));
        CHECK(session.is_padding(first.subspan(120, 8)));
        session.remove_arena(first.data());
        CHECK(!session.is_padding(first.subspan(120, 8)));
        CHECK(session.is_padding(last.subspan(120, 8)));
        CHECK(!session.in_arena(first.data(), 1));
        CHECK(session.in_arena(last.data(), 256));
        session.remove_arena(last.data());
    });
}

}  // namespace graphs_and_arenas_tests
