// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: an optimizer has step(parameters, gradients) for tensors of this element type, or step()

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

struct no_step {};

void make(hvd::communicator<hvd::threads>& comm) {
    hvd::distributed_optimizer optimizer(comm, no_step{});                      // BAD
    hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<float>{});  // GOOD
}
