// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: fuse keeps views only; this temporary's memory would be gone

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<std::vector<float>>& layers) {
    comm.allreduce(hvd::fuse(std::vector(layers)), hvd::sum);  // BAD
    comm.allreduce(hvd::fuse(std::span(layers)), hvd::sum);    // GOOD
}
