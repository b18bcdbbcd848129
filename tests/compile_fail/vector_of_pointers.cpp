// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: not a tensor: needs a contiguous range, array or view whose elements have hvd::dtype_traits

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm) {
    std::vector<int*> values;  // BAD
    std::vector<int> values;   // GOOD
    comm.allreduce(values, hvd::sum);
}
