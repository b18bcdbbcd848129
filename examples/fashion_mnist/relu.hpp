// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "layer.hpp"

namespace fashion_mnist {

/// Computes max(input, 0).
template <class Scalar>
class relu final : public layer<Scalar> {
public:
    void forward(const matrix<Scalar>& input, matrix<Scalar>& output, const pass&) override {
        output = input.cwiseMax(Scalar(0));
    }

    void backward(const matrix<Scalar>& input, const matrix<Scalar>& output_gradient,
                  matrix<Scalar>* input_gradient) override {
        if (!input_gradient) return;
        *input_gradient = (input.array() > Scalar(0)).select(output_gradient, Scalar(0));
    }
};

}  // namespace fashion_mnist
