// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "layer.hpp"

namespace fashion_mnist {

/// In training, drops each unit with a probability and scales the others up.
///
/// The mask is a function of (seed, epoch, sample, layer, unit) alone, so that neither the split of
/// a batch nor its order changes it.
template <class Scalar>
class dropout final : public layer<Scalar> {
public:
    dropout(double probability, std::uint64_t layer_number)
        : probability_(probability), layer_number_(layer_number) {}

    void forward(const matrix<Scalar>& input, matrix<Scalar>& output, const pass& pass) override {
        if (!pass.training) {
            output = input;
            return;
        }
        draw_mask(input.rows(), pass);
        output = input.cwiseProduct(mask_);
    }

    void backward(const matrix<Scalar>&, const matrix<Scalar>& output_gradient,
                  matrix<Scalar>* input_gradient) override {
        if (input_gradient) *input_gradient = output_gradient.cwiseProduct(mask_);
    }

private:
    void draw_mask(Eigen::Index units, const pass& pass) {
        const auto scale = static_cast<Scalar>(1 / (1 - probability_));
        mask_.resize(units, static_cast<Eigen::Index>(pass.samples.size()));
        for (Eigen::Index i = 0; i < mask_.cols(); ++i) {
            const random_stream random(purpose::dropout_mask, pass.seed, pass.epoch,
                                       pass.samples[static_cast<std::size_t>(i)], layer_number_);
            for (Eigen::Index unit = 0; unit < units; ++unit) {
                const bool kept = random.uniform(static_cast<std::uint64_t>(unit)) >= probability_;
                mask_(unit, i) = kept ? scale : Scalar(0);
            }
        }
    }

    double probability_;
    std::uint64_t layer_number_;
    matrix<Scalar> mask_;
};

}  // namespace fashion_mnist
