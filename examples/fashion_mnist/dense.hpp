// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>

#include "layer.hpp"

namespace fashion_mnist {

/// Computes output = weight · input + bias.
template <class Scalar>
class dense final : public layer<Scalar> {
public:
    dense(const std::string& name, Eigen::Index inputs, Eigen::Index outputs,
          const random_stream& random)
        : parameters_{make_weight<Scalar>(name + ".weight", outputs, inputs, random),
                      make_bias<Scalar>(name + ".bias", outputs)} {}

    void forward(const matrix<Scalar>& input, matrix<Scalar>& output, const pass&) override {
        output.noalias() = weight_.value * input;
        output.colwise() += bias_.value.col(0);
    }

    void backward(const matrix<Scalar>& input, const matrix<Scalar>& output_gradient,
                  matrix<Scalar>* input_gradient) override {
        weight_.gradient.noalias() = output_gradient * input.transpose();
        bias_.gradient.noalias() = output_gradient.rowwise().sum();
        if (input_gradient) input_gradient->noalias() = weight_.value.transpose() * output_gradient;
    }

    std::span<parameter<Scalar>> parameters() override { return parameters_; }

private:
    std::array<parameter<Scalar>, 2> parameters_;
    parameter<Scalar>& weight_ = parameters_[0];
    parameter<Scalar>& bias_ = parameters_[1];
};

}  // namespace fashion_mnist
