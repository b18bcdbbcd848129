// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: parameters and gradients outlive the optimizer; this temporary's memory would be gone

#include <span>
#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using optimizer =
    hvd::distributed_optimizer<hvd::communicator<hvd::threads>, hvd::optimizers::sgd<float>>;

void call(optimizer& o, std::vector<float>& weights, std::vector<float>& gradient) {
    o.register_parameter("weights", std::vector(weights), gradient);  // BAD
    o.register_parameter("weights", std::span(weights), gradient);    // GOOD
}
