// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: a parameter or gradient is const, and a step writes both

#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using communicator = hvd::communicator<hvd::threads>;
using optimizer = hvd::distributed_optimizer<communicator, hvd::optimizers::sgd<float>>;

void call(optimizer& all, const std::vector<float>& fixed, std::vector<float>& w) {
    all.register_parameter("weights", fixed, w);  // BAD
    all.register_parameter("weights", w, w);      // GOOD
}
