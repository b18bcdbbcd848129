// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the operation is missing: write hvd::sum, hvd::average

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.allreduce(values, {.name = "gradients"});            // BAD
    comm.allreduce(values, hvd::sum, {.name = "gradients"});  // GOOD
}
