// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: register_parameter("name", values, gradient) takes a name and two tensors

#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

void train(hvd::communicator<hvd::threads>& comm, std::vector<float>& w, std::vector<float>& dw) {
    hvd::distributed_optimizer all(comm, hvd::optimizers::sgd<float>{});
    all.register_parameter(w, dw);             // BAD
    all.register_parameter("weights", w, dw);  // GOOD
}
