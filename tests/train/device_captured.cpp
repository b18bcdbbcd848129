// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The calls of CUDA and NCCL that a step of a trainer on the device makes, and such a step as a
// CUDA graph.

#include <map>

#include <hvd/checkpoint.hpp>

#include "device_model.hpp"
#include "temporary_directory.hpp"

namespace device_captured_tests {

using namespace device_test;
namespace optimizers = hvd::optimizers;

namespace {

// A step calls none of these, which wait for the device or take memory.
const std::vector<std::string> never_called = {"cudaStreamSynchronize",
                                               "cudaDeviceSynchronize",
                                               "cudaEventSynchronize",
                                               "cudaMemcpy",
                                               "cudaMalloc",
                                               "cudaHostAlloc",
                                               "cudaFree",
                                               "cudaFreeHost",
                                               "cudaStreamCreateWithFlags"};
const std::vector<std::string> counted = {"launch_tiles",  "launch_update",   "ncclAllReduce",
                                          "ncclBroadcast", "cudaMemsetAsync", "cudaMemcpyAsync"};

std::map<std::string, int> calls_so_far() {
    std::map<std::string, int> calls;
    for (const auto* names : {&never_called, &counted})
        for (const auto& name : *names) calls[name] = emulation::calls_of(name);
    return calls;
}

template <class Comm>
void backward(device_model<float>& model, cudaStream_t s, Comm& gpus, auto& optimizer) {
    optimizer.zero_gradients(s);
    for (std::size_t i = model.sizes.size(); i-- > 0;) {
        model.backward(s, i, gpus.rank(), 0, 0);
        optimizer.gradient_ready(i, s);
    }
}

}  // namespace

TEST_CASE("a step packs by one launch, updates by one launch, and neither waits nor allocates") {
    for (int ranks = 2; ranks <= 4; ++ranks)
        train_on<hvd::nccl>(ranks, ranks, [](auto& world, auto& gpus) {
            for (const bool skips : {false, true}) {  // and clips
                const auto step = [&](auto& optimizer, cudaStream_t stream) {
                    auto gradients = optimizer.synchronize(stream);
                    if (skips) hvd::clip_by_norm(gradients, 1);
                    optimizer.apply(std::move(gradients), stream);
                };
                device_model<float> model;
                const stream s;
                hvd::distributed_optimizer optimizer(gpus, optimizers::adam<float>{},
                                                     {.skip_nonfinite = skips});
                model.register_with(optimizer);
                backward(model, s, gpus, optimizer);
                step(optimizer, s);  // agrees and allocates
                backward(model, s, gpus, optimizer);
                step(optimizer, s);  // looks at the order of the reports
                cudaStreamSynchronize(s);
                world.barrier();
                const auto before = calls_so_far();
                world.barrier();
                backward(model, s, gpus, optimizer);
                step(optimizer, s);
                world.barrier();
                auto calls = calls_so_far();
                for (auto& [name, count] : calls) count -= before.at(name);
                const int n = world.size();
                for (const auto& name : never_called) {
                    CAPTURE(name);
                    CHECK(calls[name] == 0);
                }
                CHECK(calls["launch_tiles"] == 2 * n);  // one packs and one unpacks
                // One looks, and one measures the norm.
                CHECK(calls["launch_update"] == (skips ? 3 : 1) * n);
                CHECK(calls["cudaMemcpyAsync"] == n);  // of the word that stops the update
                CHECK(calls["ncclAllReduce"] == (skips ? 2 : 1) * n);
                CHECK(calls["cudaMemsetAsync"] == int(model.sizes.size()) * n);
                world.barrier();
                cudaStreamSynchronize(s);
            }
        });
}

TEST_CASE_TEMPLATE("a captured step, which clips, trains as often as its graph is launched",
                   Sharded, std::false_type, std::true_type) {
    for (int ranks = 1; ranks <= 4; ++ranks)
        train_on<hvd::nccl>(ranks, ranks, [](auto& world, auto& gpus) {
            constexpr int steps = 4;
            const auto clipped_step = [](auto& optimizer, auto... stream) {
                auto gradients = optimizer.synchronize(stream...);
                hvd::clip_by_norm(gradients, 2.0);
                optimizer.apply(std::move(gradients), stream...);
            };
            const optimizers::sgd<float> sgd{.rate = 0.125f};
            host_model<float> expected;
            hvd::distributed_optimizer on_host(world, sgd);
            expected.register_with(on_host);
            for (int step = 0; step < steps; ++step) {
                on_host.zero_gradients();
                for (std::size_t i = 0; i < expected.sizes.size(); ++i)
                    expected.backward(i, world.rank(), 0, 0);
                clipped_step(on_host);
            }

            device_model<float> model;
            cudaStreamSynchronize(nullptr);  // the tensors are filled
            cudaStream_t s{};
            cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
            {
                hvd::distributed_optimizer optimizer(
                    gpus, sgd, {.skip_nonfinite = true, .shard_state = Sharded::value});
                model.register_with(optimizer);
                backward(model, s, gpus, optimizer);
                clipped_step(optimizer, s);
                cudaStreamSynchronize(s);
                world.barrier();
                cudaGraph_t graph{};
                cudaGraphExec_t launched{};
                CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
                backward(model, s, gpus, optimizer);
                clipped_step(optimizer, s);
                CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
                cudaGraphInstantiate(&launched, graph, 0);
                for (int step = 1; step < steps; ++step) cudaGraphLaunch(launched, s);
                CHECK(difference(model.values_of_all(s), expected.value) <= 1e-5);
                CHECK(optimizer.skipped_steps(s) == 0);
                world.barrier();
                cudaGraphExecDestroy(launched);
                cudaGraphDestroy(graph);
            }
            cudaStreamDestroy(s);
        });
}

TEST_CASE("a first step, and one that needs the host, is not captured") {
    train_on<hvd::nccl>(1, 1, [](auto&, auto& gpus) {
        const tensor<float> w{1}, dw{1};
        cudaStreamSynchronize(nullptr);
        cudaStream_t s{};
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
        {
            hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1});
            optimizer.register_parameter("w", w.view(), dw.view());
            hvd::distributed_optimizer by_adasum(gpus, optimizers::sgd<float>{.rate = 1},
                                                 {.op = hvd::adasum});
            by_adasum.register_parameter("w", w.view(), dw.view());
            by_adasum.step(s);
            cudaStreamSynchronize(s);
            cudaGraph_t graph{};
            cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
            CHECK_THROWS_AS(optimizer.step(s), hvd::usage_error);
            CHECK_THROWS_AS(optimizer.gradient_ready(0, s), hvd::usage_error);
            CHECK_THROWS_AS(by_adasum.step(s), hvd::usage_error);
            CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
            cudaGraphDestroy(graph);
            optimizer.step(s);
            cudaStreamSynchronize(s);
            CHECK(w.values()[0] == -1);
        }
        cudaStreamDestroy(s);
    });
}

TEST_CASE("a step that is refused in a capture leaves the capture as it was") {
    for (const bool reports : {false, true})
        train_on<hvd::staged<host>>(2, 2, [=](auto& world, auto& gpus) {
            const tensor<float> w{1}, dw{float(gpus.rank())}, other{1}, d_other{0};
            cudaDeviceSynchronize();
            cudaStream_t s{};
            cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
            {
                hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1},
                                                     {.bucket_bytes = 1});
                optimizer.register_parameter("w", w.view(), dw.view());
                optimizer.register_parameter("other", other.view(), d_other.view());
                const auto step = [&] {
                    cudaMemsetAsync(d_other.view().data(), 0, sizeof(float), s);
                    if (reports) optimizer.gradient_ready(1, s);
                    if (reports) optimizer.gradient_ready(0, s);
                    optimizer.step(s);
                };
                for (int n = 0; n < 3; ++n) step();
                cudaGraph_t graph{};
                cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
                CHECK_THROWS_AS(step(), hvd::usage_error);
                CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
                cudaGraphDestroy(graph);
                world.barrier();
                step();
                cudaStreamSynchronize(s);
                CHECK(w.values()[0] == 1 - 4 * 0.5f);
            }
            cudaStreamDestroy(s);
        });
}

// A capture in global mode forbids what a trainer does beside it, unless hvd relaxes its threads.
TEST_CASE_TEMPLATE("a trainer goes on while its thread captures another stream", Backend, hvd::nccl,
                   hvd::staged<host>, in_nodes, mixed) {
    const hvd_test::temporary_directory directory;
    const std::string path = directory / "state";
    train_on<Backend>(2, 2, [&](auto& world, auto& gpus) {
        const tensor<float> w{4, 4}, dw{1, 1};
        cudaStream_t s{}, captured{};
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking);
        cudaDeviceSynchronize();
        world.barrier();
        if (gpus.rank() == 0) cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal);
        for (const bool sharded : {false, true}) {
            hvd::distributed_optimizer optimizer(
                gpus, optimizers::sgd<float>{.rate = 1, .momentum = 0.5f},
                {.skip_nonfinite = !sharded, .shard_state = sharded});
            optimizer.register_parameter("w", w.view(), dw.view());
            hvd::broadcast_parameters(optimizer, hvd::root{0}, s);
            for (int step = 0; step < 3; ++step) {
                optimizer.gradient_ready(0, s);
                auto gradients = optimizer.synchronize(s);
                hvd::clip_by_norm(gradients, 100);
                optimizer.apply(std::move(gradients), s);
            }
            CHECK(optimizer.gradient_norm(s) == doctest::Approx(std::sqrt(2)));
            hvd::save_checkpoint(path, optimizer, {.step = 3});
            CHECK(hvd::load_checkpoint(path, optimizer).step == 3);
        }
        world.barrier();
        cudaGraph_t graph{};
        if (gpus.rank() == 0) {
            CHECK(cudaStreamEndCapture(captured, &graph) == cudaSuccess);
            cudaGraphDestroy(graph);
        }
        world.barrier();
        cudaStreamSynchronize(s);
        // The velocities are 1, 1.5 and 1.75, each time anew.
        CHECK(w.values()[1] == 4 - 2 * 4.25f);
        cudaStreamDestroy(captured);
        cudaStreamDestroy(s);
    });
}

}  // namespace device_captured_tests
