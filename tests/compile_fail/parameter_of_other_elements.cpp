// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: values, gradient and optimizer have the same element type

#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using communicator = hvd::communicator<hvd::threads>;
using optimizer = hvd::distributed_optimizer<communicator, hvd::optimizers::sgd<float>>;

void call(optimizer& all, std::vector<double>& wide, std::vector<float>& narrow) {
    all.register_parameter("weights", wide, wide);      // BAD
    all.register_parameter("weights", narrow, narrow);  // GOOD
}
