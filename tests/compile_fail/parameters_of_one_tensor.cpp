// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: register_parameters takes a range of tensors and one of their gradients, as std::vector<std::vector<float>>: a single tensor is for register_parameter

#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using optimizer =
    hvd::distributed_optimizer<hvd::communicator<hvd::threads>, hvd::optimizers::sgd<float>>;

void call(optimizer& o, std::vector<float>& weights, std::vector<float>& gradient) {
    o.register_parameters("weights", weights, gradient);  // BAD
    o.register_parameter("weights", weights, gradient);   // GOOD
}
