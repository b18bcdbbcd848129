// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: counts are integers

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, const std::vector<float>& values) {
    std::vector<float> counts;  // BAD
    std::vector<int> counts;    // GOOD
    (void)comm.alltoall(values, counts);
}
