// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the average of integers needs a rounding: hvd::average(hvd::rounding::toward_zero)

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<int>& values) {
    comm.allreduce(values, hvd::average);                              // BAD
    comm.allreduce(values, hvd::average(hvd::rounding::toward_zero));  // GOOD
}
