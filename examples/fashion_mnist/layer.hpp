// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "dataset.hpp"
#include "matrix.hpp"
#include "random.hpp"

namespace fashion_mnist {

/// A tensor to learn, with its gradient. Both stay where they are.
template <class Scalar>
struct parameter {
    std::string name;
    matrix<Scalar> value;
    matrix<Scalar> gradient;
    std::size_t number = 0;  // among those of the model
};

/// The data that a pass through the model needs beside the numbers.
struct pass {
    bool training = false;
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::span<const sample_index> samples;  // one for each column
};

/// An image whose channels lie side by side. Element (channel, x, y) has the channel fastest.
struct image_shape {
    Eigen::Index channels, width, height;

    Eigen::Index pixels() const { return width * height; }
    Eigen::Index size() const { return channels * pixels(); }
};

/// One step of a model. The model owns the data between layers.
template <class Scalar>
class layer {
public:
    layer() = default;
    layer(const layer&) = delete;
    layer& operator=(const layer&) = delete;
    virtual ~layer() = default;

    virtual void forward(const matrix<Scalar>& input, matrix<Scalar>& output, const pass&) = 0;

    /// Sets (and does not add to) the gradients of the parameters, and of the input unless it is
    /// null.
    virtual void backward(const matrix<Scalar>& input, const matrix<Scalar>& output_gradient,
                          matrix<Scalar>* input_gradient) = 0;

    virtual std::span<parameter<Scalar>> parameters() { return {}; }
};

/// Draws a weight as He et al. (2015) advise for rectifiers. It is the same for the same (seed,
/// name).
template <class Scalar>
parameter<Scalar> make_weight(std::string name, Eigen::Index rows, Eigen::Index columns,
                              const random_stream& random) {
    const double bound = std::sqrt(6.0 / static_cast<double>(columns));
    parameter<Scalar> weight{std::move(name), {}, matrix<Scalar>::Zero(rows, columns)};
    weight.value = matrix<Scalar>::NullaryExpr(rows, columns, [&](Eigen::Index i, Eigen::Index j) {
        const auto counter = static_cast<std::uint64_t>(j * rows + i);
        return static_cast<Scalar>((2 * random.uniform(counter) - 1) * bound);
    });
    return weight;
}

template <class Scalar>
parameter<Scalar> make_bias(std::string name, Eigen::Index rows) {
    return {std::move(name), matrix<Scalar>::Zero(rows, 1), matrix<Scalar>::Zero(rows, 1), 0};
}

}  // namespace fashion_mnist
