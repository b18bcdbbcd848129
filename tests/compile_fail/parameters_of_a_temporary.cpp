// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: parameters and gradients outlive the optimizer; this temporary's memory would be gone

#include <span>
#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using optimizer =
    hvd::distributed_optimizer<hvd::communicator<hvd::threads>, hvd::optimizers::sgd<float>>;
using tensors = std::vector<std::vector<float>>;
using views = std::span<std::vector<float>>;

void call(optimizer& o, tensors& weights, tensors& gradients) {
    o.register_parameters("weights", tensors(weights), gradients);  // BAD
    o.register_parameters("weights", views(weights), gradients);    // GOOD
}
