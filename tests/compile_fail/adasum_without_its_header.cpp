// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: allreduce with hvd::adasum needs #include <hvd/train.hpp>

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.allreduce(values, hvd::adasum);   // BAD
    comm.allreduce(values, hvd::average);  // GOOD
}
