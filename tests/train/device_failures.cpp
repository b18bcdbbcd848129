// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Steps of a trainer on the device that fail: no rank updates its parameters with gradients that
// were not reduced.

#include <algorithm>

#include "device_support.hpp"

using namespace device_test;
namespace optimizers = hvd::optimizers;

namespace {

using floats = std::vector<float>;

// One model for each way in which a step can go.
std::vector<hvd::optimizer_options> kinds_of_step() {
    return {{},
            {.skip_nonfinite = true},
            {.shard_state = true},
            {.codec = hvd::gradient_codec::bfloat16}};
}

// A parameter of which each rank of four has a slice.
const floats ones(48, 1), twos(48, 2), zeros(48, 0);

}  // namespace

TEST_CASE("a step that waits for a rank for ever changes no parameter when its communicator ends") {
    for (const auto& options : kinds_of_step())
        for (int ranks = 2; ranks <= 4; ++ranks)
            train_on<hvd::nccl>(ranks, ranks, [&](auto& world, auto& gpus) {
                const stream s;
                const tensor<float> w(twos), dw(ones), local{5}, dl{1};
                hvd::distributed_optimizer optimizer(gpus, optimizers::momentum<float>{.rate = 1},
                                                     options);
                optimizer.register_parameter("w", w.view(), dw.view());
                optimizer.register_local("local", local.view(), dl.view());
                optimizer.step(s);
                CHECK(s.values(w) == ones);
                world.barrier();
                if (gpus.rank() != 0) {
                    s.write(dw, floats(48, 100));
                    optimizer.step(s);  // rank 0 does not come
                    gpus.abort();
                    CHECK(s.values(w) == ones);
                    CHECK(s.values(local)[0] == 5 - 1 / float(ranks));
                    CHECK_THROWS_AS(optimizer.step(s), hvd::peer_error);
                    CHECK(s.values(w) == ones);
                }
                world.barrier();
            });
}

TEST_CASE_TEMPLATE("slices that did not come change no parameter", Backend, hvd::nccl,
                   hvd::per_operation<hvd::staged<host>, hvd::nccl, hvd::nccl>) {
    for (int ranks = 2; ranks <= 4; ++ranks)
        train_on<Backend>(ranks, ranks, [&](auto& world, auto& gpus) {
            const stream s;
            const tensor<float> w(twos), dw(ones);
            hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1},
                                                 {.shard_state = true});
            optimizer.register_parameter("w", w.view(), dw.view());
            optimizer.step(s);
            CHECK(s.values(w) == ones);
            auto gradients = optimizer.synchronize(s);
            cudaStreamSynchronize(s);
            world.barrier();
            if (gpus.rank() != 0) {  // rank 0 sends no values
                optimizer.apply(std::move(gradients), s);
                hvd::detail::device_access::for_each_session(
                    gpus, [](auto& session) { session.give_up("the test ends it"); });
                floats got = s.values(w);
                const std::size_t each = (48 / std::size_t(ranks) + 3) / 4 * 4;
                const auto own = got.begin() + std::ptrdiff_t(each) * gpus.rank();
                CHECK((*own == 1 || *own == 0));  // this rank may have stepped its own slice
                std::fill_n(own, std::min(each, 48 - each * std::size_t(gpus.rank())), 1.0f);
                CHECK(got == ones);
            }
            world.barrier();
        });
}

TEST_CASE("a step whose deadline passes changes no parameter") {
    for (const bool sharded : {false, true})
        train_on_every_backend(
            [&](auto& world, auto& gpus) {
                const stream s;
                const tensor<float> w(twos), dw(ones);
                hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1},
                                                     {.shard_state = sharded});
                optimizer.register_parameter("w", w.view(), dw.view());
                optimizer.step(s);
                CHECK(s.values(w) == ones);
                world.barrier();
                if (gpus.rank() != 0) {
                    try {
                        optimizer.step(s);              // rank 0 does not come
                    } catch (const hvd::peer_error&) {  // of a backend that needs the host
                    }
                    CHECK(s.values(w) == ones);
                    CHECK_THROWS_AS(optimizer.step(s), hvd::peer_error);
                }
                world.barrier();
            },
            {.deadline = 500ms * slowness, .destructor_deadline = 200ms * slowness});
}

TEST_CASE("a captured step changes no parameter when its communicator ends") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        train_on<hvd::nccl>(ranks, ranks, [](auto& world, auto& gpus) {
            const tensor<float> w(twos), dw(ones);
            cudaStreamSynchronize(nullptr);
            cudaStream_t s{};
            cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
            {
                hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1});
                optimizer.register_parameter("w", w.view(), dw.view());
                optimizer.step(s);
                cudaStreamSynchronize(s);
                world.barrier();
                cudaGraph_t graph{};
                cudaGraphExec_t launched{};
                cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
                optimizer.step(s);
                CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
                cudaGraphInstantiate(&launched, graph, 0);
                cudaGraphLaunch(launched, s);
                cudaStreamSynchronize(s);
                CHECK(w.values() == zeros);
                world.barrier();
                if (gpus.rank() == 0) gpus.abort();
                cudaGraphLaunch(launched, s);
                gpus.abort();
                cudaStreamSynchronize(s);
                CHECK(w.values() == zeros);
                CHECK_THROWS_AS(optimizer.step(s), hvd::peer_error);
                world.barrier();
                cudaGraphExecDestroy(launched);
                cudaGraphDestroy(graph);
            }
            cudaStreamDestroy(s);
        });
}
