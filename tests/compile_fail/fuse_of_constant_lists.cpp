// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the call writes this tensor, but its elements are const

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<std::vector<float>>& layers) {
    comm.allreduce(hvd::fuse(std::as_const(layers)), hvd::sum);  // BAD
    comm.allreduce(hvd::fuse(layers), hvd::sum);                 // GOOD
}
