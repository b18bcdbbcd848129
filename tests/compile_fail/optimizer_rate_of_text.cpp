// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: set_rate(0.1) takes a number

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using optimizer =
    hvd::distributed_optimizer<hvd::communicator<hvd::threads>, hvd::optimizers::sgd<float>>;

void slow_down(optimizer& all) {
    all.set_rate("0.1");  // BAD
    all.set_rate(0.1);    // GOOD
}
