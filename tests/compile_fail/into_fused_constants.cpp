// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the call writes this tensor, but its elements are const

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, const std::vector<float>& mine) {
    const std::vector<float> all(10);  // BAD
    std::vector<float> all(10);        // GOOD
    comm.allgather(hvd::fuse(mine), hvd::into(hvd::fuse(all)));
}
