// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <torch/nn.h>

namespace torch_mnist {

/// The `cnn` of examples/fashion_mnist in LibTorch.
struct cnn : torch::nn::Module {
    cnn() {
        conv1 = register_module("conv1", torch::nn::Conv2d(1, 32, 3));
        conv2 = register_module("conv2", torch::nn::Conv2d(32, 64, 3));
        dense1 = register_module("dense1", torch::nn::Linear(64 * 12 * 12, 128));
        dense2 = register_module("dense2", torch::nn::Linear(128, 10));
    }

    torch::Tensor forward(torch::Tensor x) {
        x = torch::relu(conv1(x));
        x = torch::max_pool2d(torch::relu(conv2(x)), 2);
        x = torch::dropout(x.flatten(1), 0.25, is_training());
        x = torch::dropout(torch::relu(dense1(x)), 0.5, is_training());
        return torch::log_softmax(dense2(x), 1);
    }

    torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
    torch::nn::Linear dense1{nullptr}, dense2{nullptr};
};

}  // namespace torch_mnist
