// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: fuse keeps views only; this temporary's memory would be gone

#include <span>
#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& a, std::vector<float>& b) {
    comm.allreduce(hvd::fuse(a, std::vector(b)), hvd::sum);  // BAD
    comm.allreduce(hvd::fuse(a, std::span(b)), hvd::sum);    // GOOD
}
