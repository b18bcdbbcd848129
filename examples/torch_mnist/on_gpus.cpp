// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include "on_gpus.hpp"

#include <chrono>

#include <hvd/interop/torch_cuda.hpp>
#include <hvd/nccl.hpp>

#include "with_hvd.hpp"

namespace torch_mnist {
namespace {

using namespace std::chrono_literals;

template <class Backend>
struct data_parallel {
    data_parallel(world& ranks, cnn& net, double rate)
        : gpus(ranks, {.timeout = 60s}), training(gpus, net, rate) {}
    hvd::communicator<Backend> gpus;
    with_hvd<hvd::communicator<Backend>> training;
};

template <class Backend>
trainer train_by(const std::string& name, world& ranks, torch::Device gpu, double rate) {
    const auto net = make_net(gpu);
    const auto parallel = std::make_shared<data_parallel<Backend>>(ranks, *net, rate);
    return {"hvd's " + name, net, gpu, [parallel](const loss_function& loss) {
                parallel->training.step(loss, hvd::torch_stream(parallel->gpus));
            }};
}

}  // namespace

trainer on_gpus(world& ranks, const std::string& backend, double rate) {
    // NCCL takes one rank on each GPU. Ranks whose tensors are staged may share one.
    const int own = hvd::pin_device(ranks, {.share = backend != "nccl"});
    const torch::Device gpu(torch::kCUDA, static_cast<c10::DeviceIndex>(own));
    if (backend == "nccl") return train_by<hvd::nccl>(backend, ranks, gpu, rate);
    return train_by<hvd::staged<hvd::mpi>>(backend, ranks, gpu, rate);
}

}  // namespace torch_mnist
