// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <array>

#include "layer.hpp"

namespace fashion_mnist {

/// A 3×3 convolution without padding. Each image becomes a matrix of patches (im2col), and the
/// convolution becomes a product.
template <class Scalar>
class conv2d final : public layer<Scalar> {
public:
    static constexpr Eigen::Index side = 3;

    conv2d(const std::string& name, image_shape input, Eigen::Index channels,
           const random_stream& random)
        : input_shape_(input),
          output_shape_{channels, input.width - side + 1, input.height - side + 1},
          patches_(input.channels * side * side, output_shape_.pixels()),
          parameters_{make_weight<Scalar>(name + ".weight", channels, patches_.rows(), random),
                      make_bias<Scalar>(name + ".bias", channels)} {}

    const image_shape& output_shape() const { return output_shape_; }

    void forward(const matrix<Scalar>& input, matrix<Scalar>& output, const pass&) override {
        output.resize(output_shape_.size(), input.cols());
        for (Eigen::Index sample = 0; sample < input.cols(); ++sample) {
            gather_patches(input.col(sample).data());
            pixels out(output.col(sample).data(), output_shape_.channels, output_shape_.pixels());
            out.noalias() = weight_.value * patches_;
            out.colwise() += bias_.value.col(0);
        }
    }

    void backward(const matrix<Scalar>& input, const matrix<Scalar>& output_gradient,
                  matrix<Scalar>* input_gradient) override {
        weight_.gradient.setZero();
        bias_.gradient.setZero();
        if (input_gradient) input_gradient->setZero(input.rows(), input.cols());
        for (Eigen::Index sample = 0; sample < input.cols(); ++sample) {
            const const_pixels gradient(output_gradient.col(sample).data(), output_shape_.channels,
                                        output_shape_.pixels());
            gather_patches(input.col(sample).data());
            weight_.gradient.noalias() += gradient * patches_.transpose();
            bias_.gradient += gradient.rowwise().sum();
            if (!input_gradient) continue;
            patches_.noalias() = weight_.value.transpose() * gradient;
            scatter_patches(input_gradient->col(sample).data());
        }
    }

    std::span<parameter<Scalar>> parameters() override { return parameters_; }

private:
    using pixels = Eigen::Map<matrix<Scalar>>;
    using const_pixels = Eigen::Map<const matrix<Scalar>>;
    using run = Eigen::Array<Scalar, Eigen::Dynamic, 1>;

    // Channels lie side by side, so that each row of a patch is one run of 3 · channels numbers.
    template <class Action>
    void for_each_run(Action action) {
        const Eigen::Index row = input_shape_.channels * input_shape_.width;
        const Eigen::Index length = input_shape_.channels * side;
        Scalar* patch = patches_.data();
        for (Eigen::Index y = 0; y < output_shape_.height; ++y)
            for (Eigen::Index x = 0; x < output_shape_.width; ++x)
                for (Eigen::Index dy = 0; dy < side; ++dy, patch += length)
                    action((y + dy) * row + x * input_shape_.channels, patch, length);
    }

    void gather_patches(const Scalar* image) {
        for_each_run([image](Eigen::Index at, Scalar* patch, Eigen::Index length) {
            std::copy_n(image + at, length, patch);
        });
    }

    void scatter_patches(Scalar* image) {
        for_each_run([image](Eigen::Index at, const Scalar* patch, Eigen::Index length) {
            Eigen::Map<run>(image + at, length) += Eigen::Map<const run>(patch, length);
        });
    }

    image_shape input_shape_;
    image_shape output_shape_;
    matrix<Scalar> patches_;
    std::array<parameter<Scalar>, 2> parameters_;
    parameter<Scalar>& weight_ = parameters_[0];
    parameter<Scalar>& bias_ = parameters_[1];
};

}  // namespace fashion_mnist
