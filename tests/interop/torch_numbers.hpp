// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include <torch/nn.h>

namespace hvd_test {

// The numbers are the same on every rank. LibTorch's own generator is shared by the whole process.
inline torch::Tensor numbers(std::int64_t seed, at::IntArrayRef shape) {
    return torch::sin(torch::arange(c10::multiply_integers(shape), torch::kFloat64) * 1.7 +
                      double(seed))
        .reshape(shape);
}

// Gives the parameters of a module such numbers, in double.
inline void set_numbers(torch::nn::Module& module) {
    module.to(torch::kFloat64);
    torch::NoGradGuard guard;
    std::int64_t seed = 0;
    for (auto& p : module.parameters()) p.copy_(0.5 * numbers(++seed, p.sizes()));
}

}  // namespace hvd_test
