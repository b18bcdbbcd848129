// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// A trainer of a CUDA module of LibTorch on 1 to 4 forked processes, by each policy, against
// LibTorch alone with the whole batch. Without a GPU it exits with 77. It compiles with a LibTorch
// that has no CUDA, too.

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include <hvd/interop/torch_cuda.hpp>
#include <hvd/nccl.hpp>

#include "../device/gpu_forked.hpp"

namespace {

using host = device_test::forked;
using staged = hvd::staged<host>;

constexpr std::int64_t batch = 24;
constexpr int steps = 5;

torch::Tensor numbers(int seed, std::int64_t rows, std::int64_t columns) {
    return torch::sin(torch::arange(rows * columns, torch::kDouble) * 0.7 + seed)
        .reshape({rows, columns})
        .to(torch::kCUDA);
}

struct net : torch::nn::Module {
    torch::nn::Linear first{nullptr}, second{nullptr};
    net() {
        first = register_module("first", torch::nn::Linear(5, 7));
        second = register_module("second", torch::nn::Linear(7, 2));
        to(torch::kCUDA, torch::kDouble);
        const torch::NoGradGuard guard;
        int seed = 0;
        for (auto& p : parameters()) p.copy_(numbers(seed++, 1, p.numel()).reshape(p.sizes()));
    }
    // Each rank has every n-th sample of a batch. The scale makes the average the batch's mean.
    torch::Tensor loss(int step, int rank, int size) {
        const auto x = numbers(100 + step, batch, 5).slice(0, rank, batch, size);
        const auto y = numbers(200 + step, batch, 2).slice(0, rank, batch, size);
        return (second->forward(torch::tanh(first->forward(x))) - y).square().sum() *
               (double(size) / double(batch));
    }
    double distance(const net& other) {
        double most = 0;
        for (std::size_t i = 0; i < parameters().size(); ++i) {
            const double d = (parameters()[i] - other.parameters()[i]).abs().max().item<double>();
            most = std::isnan(d) ? INFINITY : std::max(most, d);
        }
        return most;
    }
};

torch::optim::SGD sgd_of(net& model) {
    return torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

void train_alone(net& model) {
    torch::optim::SGD sgd = sgd_of(model);
    for (int step = 0; step < steps; ++step) {
        sgd.zero_grad();
        model.loss(step, 0, 1).backward();
        sgd.step();
    }
}

template <class Policy, class World>
void train_by(World& world, const auto& report) {
    hvd::pin_device(world, {.share = true});
    hvd::communicator<Policy> gpus(world, {.timeout = std::chrono::seconds(60)});
    net alone, model;
    train_alone(alone);
    hvd::broadcast_module(gpus, model);
    hvd::distributed_optimizer optimizer(gpus, sgd_of(model), {.bucket_bytes = 100});
    hvd::torch_gradients gradients(optimizer, model);
    const cudaStream_t stream = hvd::torch_stream(gpus);
    for (int step = 0; step < steps; ++step) {
        optimizer.zero_gradients(stream);
        model.loss(step, gpus.rank(), gpus.size()).backward();
        optimizer.step(stream);
    }
    report(model.distance(alone) < 1e-9, "the parameters are those of LibTorch alone");
}

}  // namespace

int main() {
    if (on_a_gpu::gpus_of_this_machine() == 0) {
        std::printf("LibTorch's trainers: not shown: no usable GPU or driver was found\n");
        return 77;
    }
    bool right = true;
    for (int ranks = 1; ranks <= 4; ++ranks) {
        const auto play = [&](const char* name, auto part) {
            right &= on_a_gpu::right_on_processes(name, ranks, false, part);
        };
        play("LibTorch over nccl",
             [](auto& world, const auto& report) { train_by<hvd::nccl>(world, report); });
        play("LibTorch over staged",
             [](auto& world, const auto& report) { train_by<staged>(world, report); });
        play("LibTorch over per_operation", [](auto& world, const auto& report) {
            train_by<hvd::per_operation<hvd::nccl, staged, staged>>(world, report);
        });
        play("LibTorch over hierarchical", [](auto& world, const auto& report) {
            train_by<hvd::hierarchical<hvd::nccl, host>>(world, report);
        });
    }
    return right ? 0 : 1;
}
