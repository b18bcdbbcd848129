// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the call writes this tensor, but its elements are const

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& others) {
    const std::vector<float> values(10);  // BAD
    std::vector<float> values(10);        // GOOD
    comm.broadcast(hvd::fuse(others, values));
}
