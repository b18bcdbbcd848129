// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include <hvd/hvd.hpp>

#include "model.hpp"

namespace fashion_mnist {

/// Stochastic gradient descent with momentum: velocity = momentum · velocity + gradient,
/// value −= rate · velocity. It holds its parameters itself: `hvd::distributed_optimizer` averages
/// the gradients where they are, then calls `step()`.
template <class Scalar>
class sgd {
public:
    using value_type = Scalar;

    double rate = 0;

    sgd(const model<Scalar>& model, double momentum)
        : parameters_(model.parameters()), momentum_(static_cast<Scalar>(momentum)) {
        for (const parameter<Scalar>* p : parameters_)
            velocities_.push_back(matrix<Scalar>::Zero(p->value.rows(), p->value.cols()));
    }

    void step() {
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            velocities_[i] = momentum_ * velocities_[i] + parameters_[i]->gradient;
            parameters_[i]->value -= static_cast<Scalar>(rate) * velocities_[i];
        }
    }

    /// One for each parameter of the model, in its order.
    std::vector<matrix<Scalar>>& velocities() { return velocities_; }
    const std::vector<matrix<Scalar>>& velocities() const { return velocities_; }

private:
    std::vector<parameter<Scalar>*> parameters_;
    std::vector<matrix<Scalar>> velocities_;
    Scalar momentum_;
};

}  // namespace fashion_mnist
