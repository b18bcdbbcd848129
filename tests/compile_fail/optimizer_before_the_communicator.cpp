// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: distributed_optimizer takes a communicator, an optimizer, and members

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using sgd = hvd::optimizers::sgd<float>;

void make(hvd::communicator<hvd::threads>& comm) {
    hvd::distributed_optimizer all(sgd{.rate = 0.1f}, comm);  // BAD
    hvd::distributed_optimizer all(comm, sgd{.rate = 0.1f});  // GOOD
}
