// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: gradient_ready(i) takes the number that register_parameter returned

#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

void train(hvd::communicator<hvd::threads>& comm, std::vector<float>& w, std::vector<float>& dw) {
    hvd::distributed_optimizer all(comm, hvd::optimizers::sgd<float>{});
    const auto weights = all.register_parameter("weights", w, dw);
    all.gradient_ready("weights");  // BAD
    all.gradient_ready(weights);    // GOOD
}
