// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "engine.hpp"

namespace custom_engine {

/// Computes output = w2 · tanh(w1 · input + b1) + b2 of two inputs.
class network {
public:
    static constexpr std::size_t inputs = 2, hidden = 24;

    /// Its parameters, or their gradients, are side by side in memory of the engine.
    explicit network(std::pmr::memory_resource& memory) : all_(hidden * (inputs + 2) + 1, &memory) {
        float* at = all_.data();
        for (auto& [tensor, rows, columns] : {std::tuple(&w1_, hidden, inputs),
                                              {&b1_, hidden, 1},
                                              {&w2_, hidden, 1},
                                              {&b2_, 1, 1}}) {
            *tensor = {at, rows, columns};
            at += tensor->size();
        }
    }

    std::array<tensor, 4> tensors() const { return {w1_, b1_, w2_, b2_}; }

    /// Adds half the squared error's gradient, times `scale`, and returns the squared error.
    double backward(const std::array<float, inputs>& x, float target, float scale,
                    const network& to) const {
        std::array<float, hidden> h;
        float error = b2_.at(0) - target;
        for (std::size_t k = 0; k < hidden; ++k) {
            float sum = b1_.at(k);
            for (std::size_t i = 0; i < inputs; ++i) sum += w1_.at(k, i) * x[i];
            h[k] = std::tanh(sum);
            error += w2_.at(k) * h[k];
        }
        const float gradient = scale * error;
        to.b2_.at(0) += gradient;
        for (std::size_t k = 0; k < hidden; ++k) {
            to.w2_.at(k) += gradient * h[k];
            const float below = gradient * w2_.at(k) * (1 - h[k] * h[k]);
            to.b1_.at(k) += below;
            for (std::size_t i = 0; i < inputs; ++i) to.w1_.at(k, i) += below * x[i];
        }
        return double(error) * double(error);
    }

private:
    std::pmr::vector<float> all_;
    tensor w1_, b1_, w2_, b2_;
};

}  // namespace custom_engine
