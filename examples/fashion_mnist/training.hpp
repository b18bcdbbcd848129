// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>

#include "models.hpp"
#include "options.hpp"
#include "stored_parameters.hpp"

namespace fashion_mnist {

/// All that a training must not lose. It outlives the communicators of an elastic job.
template <class Scalar, class Stored = Scalar>
struct training {
    explicit training(const options& options)
        : network(make_model<Scalar>(options.model, options.seed)),
          optimizer(make_sgd<Scalar, Stored>(options.momentum)),
          progress{.seed = options.seed} {}

    /// The parameters, where the model has them.
    std::vector<hvd::tensor_view<Scalar>> values() const {
        std::vector<hvd::tensor_view<Scalar>> all;
        for (parameter<Scalar>* p : network.parameters())
            all.push_back(hvd::view(p->value.data(), static_cast<std::size_t>(p->value.size())));
        return all;
    }

    model<Scalar> network;
    sgd_of<Scalar, Stored> optimizer;
    hvd::training_progress progress;
};

}  // namespace fashion_mnist
