// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <cstddef>

#include "layer.hpp"

namespace fashion_mnist {

/// Takes the greatest of each 2×2 pixels, channel by channel.
template <class Scalar>
class max_pool final : public layer<Scalar> {
public:
    explicit max_pool(image_shape input)
        : input_shape_(input), output_shape_{input.channels, input.width / 2, input.height / 2} {}

    const image_shape& output_shape() const { return output_shape_; }

    void forward(const matrix<Scalar>& input, matrix<Scalar>& output, const pass&) override {
        output.resize(output_shape_.size(), input.cols());
        for_each_pixel(input.cols(), [&](Eigen::Index sample, Eigen::Index at, const auto& from) {
            const auto pixel = [&](std::size_t i) { return channels_of(input, from[i], sample); };
            output.col(sample).segment(at, output_shape_.channels) =
                pixel(0).cwiseMax(pixel(1)).cwiseMax(pixel(2).cwiseMax(pixel(3)));
        });
    }

    // The first of equal pixels takes the gradient.
    void backward(const matrix<Scalar>& input, const matrix<Scalar>& output_gradient,
                  matrix<Scalar>* input_gradient) override {
        if (!input_gradient) return;
        input_gradient->setZero(input.rows(), input.cols());
        for_each_pixel(input.cols(), [&](Eigen::Index sample, Eigen::Index at, const auto& from) {
            for (Eigen::Index channel = 0; channel < output_shape_.channels; ++channel) {
                Eigen::Index greatest = from[0] + channel;
                for (std::size_t i = 1; i < 4; ++i)
                    if (input(from[i] + channel, sample) > input(greatest, sample))
                        greatest = from[i] + channel;
                (*input_gradient)(greatest, sample) = output_gradient(at + channel, sample);
            }
        });
    }

private:
    auto channels_of(const matrix<Scalar>& batch, Eigen::Index at, Eigen::Index sample) const {
        return batch.col(sample).segment(at, output_shape_.channels);
    }

    // Calls action(sample, begin of the output pixel, begins of its four input pixels).
    template <class Action>
    void for_each_pixel(Eigen::Index samples, Action action) const {
        const Eigen::Index step = input_shape_.channels;
        const Eigen::Index row = step * input_shape_.width;
        for (Eigen::Index sample = 0; sample < samples; ++sample)
            for (Eigen::Index y = 0; y < output_shape_.height; ++y)
                for (Eigen::Index x = 0; x < output_shape_.width; ++x) {
                    const Eigen::Index first = 2 * (y * row + x * step);
                    const std::array from{first, first + step, first + row, first + row + step};
                    action(sample, (y * output_shape_.width + x) * step, from);
                }
    }

    image_shape input_shape_;
    image_shape output_shape_;
};

}  // namespace fashion_mnist
