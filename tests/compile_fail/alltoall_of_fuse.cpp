// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: this form of the call takes no fuse(…): call it for each tensor

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& x, std::vector<float>& y,
          std::vector<int>& counts) {
    auto all = comm.alltoall(hvd::fuse(x, y), counts);  // BAD
    auto all = comm.alltoall(hvd::fuse(x, y));          // GOOD
}
