// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: apply(std::move(gradients)) takes what synchronize() returned

#include <utility>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using optimizer =
    hvd::distributed_optimizer<hvd::communicator<hvd::threads>, hvd::optimizers::sgd<float>>;

void step(optimizer& all) {
    auto gradients = all.synchronize();
    all.apply();                      // BAD
    all.apply(std::move(gradients));  // GOOD
}
