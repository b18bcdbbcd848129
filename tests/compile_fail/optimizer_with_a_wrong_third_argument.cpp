// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the third argument of distributed_optimizer<…> is the type of the elements

#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using communicator = hvd::communicator<hvd::threads>;

void train(communicator& comm, std::vector<float>& w, std::vector<float>& gradient) {
    using rule = hvd::optimizers::sgd<float>;
    hvd::distributed_optimizer<communicator, rule, std::vector<float>&> all(comm, {});  // BAD
    hvd::distributed_optimizer<communicator, rule, float> all(comm, {});                // GOOD
    all.register_parameter("weights", w, gradient);
    all.step();
}
