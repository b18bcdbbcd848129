// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: this is a list of tensors: write hvd::fuse(list)

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<std::vector<float>>& layers) {
    comm.allreduce(layers, hvd::sum);             // BAD
    comm.allreduce(hvd::fuse(layers), hvd::sum);  // GOOD
}
