// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "matrix.hpp"

namespace fashion_mnist {

/// Sums over samples. They are added over steps and ranks.
struct score {
    double loss = 0;
    double correct = 0;
    double samples = 0;

    score& operator+=(const score& other) {
        loss += other.loss;
        correct += other.correct;
        samples += other.samples;
        return *this;
    }

    double mean_loss() const { return loss / samples; }
    double accuracy() const { return correct / samples; }
};

/// Computes softmax and cross entropy. It turns `outputs` into `scale` times the gradient of the
/// summed loss.
template <class Scalar>
score softmax_cross_entropy(matrix<Scalar>& outputs, std::span<const std::uint8_t> labels,
                            Scalar scale) {
    score total;
    for (Eigen::Index sample = 0; sample < outputs.cols(); ++sample) {
        auto column = outputs.col(sample).array();
        const Eigen::Index label = labels[static_cast<std::size_t>(sample)];
        Eigen::Index guess;
        column -= Scalar(column.maxCoeff(&guess));
        const Scalar chosen = column(label);
        column = column.exp();
        const Scalar sum = column.sum();
        column *= scale / sum;
        column(label) -= scale;
        total += {static_cast<double>(std::log(sum) - chosen), guess == label ? 1. : 0., 1.};
    }
    return total;
}

}  // namespace fashion_mnist
