// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: this backend can't reduce this element type with this operation

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm) {
    std::vector<float> values;  // BAD
    std::vector<int> values;    // GOOD
    comm.allreduce(values, hvd::bit_and);
}
