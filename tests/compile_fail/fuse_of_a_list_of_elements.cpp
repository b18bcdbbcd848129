// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: a tensor needs a contiguous range (std::vector, std::span, std::array)

#include <list>
#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::list<float>& values,
          std::list<std::vector<float>>& tensors) {
    comm.allreduce(hvd::fuse(values), hvd::sum);   // BAD
    comm.allreduce(hvd::fuse(tensors), hvd::sum);  // GOOD
}
