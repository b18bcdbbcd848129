// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: apply(std::move(gradients)) takes what synchronize() returned

#include <utility>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

template <class Optimizer>
void step(Optimizer& optimizer) {
    auto gradients = optimizer.synchronize();
    optimizer.apply(gradients);             // BAD
    optimizer.apply(std::move(gradients));  // GOOD
}
template void step(
    hvd::distributed_optimizer<hvd::communicator<hvd::threads>, hvd::optimizers::sgd<float>>&);
