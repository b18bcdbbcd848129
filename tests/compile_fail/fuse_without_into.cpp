// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the memory of the result is marked: hvd::into(out)

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& x, std::vector<float>& y) {
    comm.alltoall(hvd::fuse(x), hvd::fuse(y));             // BAD
    comm.alltoall(hvd::fuse(x), hvd::into(hvd::fuse(y)));  // GOOD
}
