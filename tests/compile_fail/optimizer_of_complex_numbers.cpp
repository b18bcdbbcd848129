// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: a complex tensor is registered as its reals

#include <complex>
#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using communicator = hvd::communicator<hvd::threads>;

void call(communicator& comm) {
    hvd::distributed_optimizer bad(comm, hvd::optimizers::adam<std::complex<float>>{});  // BAD
    hvd::distributed_optimizer good(comm, hvd::optimizers::adam<float>{});               // GOOD
}
