// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// hvd's kernels, for compute-sanitizer: packed and cast plans, optimizers, staged calls. The ranks
// are threads of this process.

#include <hvd/threads.hpp>
#include <hvd/train_device.hpp>

#include "gpu_forked.hpp"
#include "tensor.hpp"

namespace on_a_gpu {

namespace {

using device_test::numbers, device_test::tensor;

template <class Gpus>
void pack_and_cast(Gpus& gpus) {
    const int n = gpus.size(), r = gpus.rank();
    const tensor<float> a(numbers<float>(1003, r)), c(numbers<float>(300'001, r));
    const tensor<hvd::bfloat16> b(numbers<hvd::bfloat16>(77, r));
    const auto odd = hvd::device_view(a.data() + 1, 1001);
    const auto all = hvd::fuse(odd, b.view(), hvd::device_view(c.data() + 3, 299'998));
    gpus.plan_allreduce(all, hvd::average, {}, hvd::codec::cast<hvd::bfloat16>).run();
    check(a.values()[1] == 0.5f * float(n + 1), "a cast plan", gpus);
    gpus.plan_allreduce(hvd::fuse(odd, c.view()), hvd::sum, {.prescale = 2}).run();
    check(a.values()[1] == float(n * (n + 1)), "a packed plan", gpus);
}

template <class Gpus, class Optimizer>
void optimize(Gpus& gpus, Optimizer inner) {
    const tensor<float> w(numbers<float>(1003, 0)), dw(numbers<float>(1003, gpus.rank())),
        b(numbers<float>(5, 0)), db(numbers<float>(5, gpus.rank()));
    const float before = w.values()[1];
    hvd::distributed_optimizer optimizer(gpus, std::move(inner), {.skip_nonfinite = true});
    optimizer.register_parameter("w", w.view(), dw.view());
    optimizer.register_parameter("b", b.view(), db.view());
    cudaStream_t stream{};
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int step = 0; step < 3; ++step) {
        auto gradients = optimizer.synchronize(stream);
        hvd::clip_by_norm(gradients, 1.0);
        optimizer.apply(std::move(gradients), stream);
    }
    check(std::isfinite(optimizer.gradient_norm(stream)), "a norm", gpus);
    cudaStreamSynchronize(stream);
    check(w.values()[1] < before, "a step of an optimizer", gpus);
    cudaStreamDestroy(stream);
}

template <class Gpus>
void use_kernels(Gpus& gpus) {
    pack_and_cast(gpus);
    optimize(gpus, hvd::optimizers::sgd<float>{.rate = 0.01f, .momentum = 0.9f});
    optimize(gpus, hvd::optimizers::adam<float>{});
    optimize(gpus, hvd::optimizers::adamw<float>{});
}

}  // namespace

bool kernels() {
    for (int ranks = 1; ranks <= 2; ++ranks)
        hvd::run_threads(ranks, [](hvd::communicator<hvd::threads>& world) {
            hvd::pin_device(world, {.share = true});
            hvd::communicator<hvd::staged<hvd::threads>> staged(
                world, {.timeout = std::chrono::seconds(120)});
            use_kernels(staged);
            if (world.size() > 1) return;
            hvd::communicator<hvd::nccl> gpus(world, {.timeout = std::chrono::seconds(120)});
            use_kernels(gpus);
        });
    return failures == 0;
}

}  // namespace on_a_gpu
