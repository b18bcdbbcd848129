// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// A trainer of a CUDA module of LibTorch. It is compiled, and linked if LibTorch has CUDA. The
// example torch_mnist can run.

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <hvd/interop/torch_cuda.hpp>
#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>

namespace {

//! [torch_cuda]
void train(hvd::communicator<hvd::nccl>& gpus, torch::nn::Linear& net, const torch::Tensor& batch) {
    net->to(torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(gpus.device())));
    torch::optim::SGD sgd(net->parameters(), 0.01);
    hvd::broadcast_module(gpus, *net);
    hvd::broadcast_optimizer_state(gpus, sgd);
    hvd::distributed_optimizer optimizer(gpus, std::move(sgd));
    hvd::torch_gradients gradients(optimizer, *net);
    const cudaStream_t stream = hvd::torch_stream(gpus);
    for (int step = 0; step < 10; ++step) {
        optimizer.zero_gradients(stream);
        net->forward(batch).sum().backward();  // buckets start meanwhile
        optimizer.step(stream);
    }
}
//! [torch_cuda]

}  // namespace

auto* const trained_by = &train;
