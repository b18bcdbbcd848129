// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: an optimizer steps float, double, hvd::float16 or hvd::bfloat16

#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using communicator = hvd::communicator<hvd::threads>;

void call(communicator& comm) {
    hvd::distributed_optimizer bad(comm, hvd::optimizers::sgd<int>{});     // BAD
    hvd::distributed_optimizer good(comm, hvd::optimizers::sgd<float>{});  // GOOD
}
