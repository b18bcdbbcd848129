// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: a type of another library needs hvd::view_traits

#include <vector>

#include <hvd/threads.hpp>

struct foreign_tensor {
    float* data;
    int count;
};

void call(hvd::communicator<hvd::threads>& comm, foreign_tensor& tensor) {
    comm.allreduce(hvd::fuse(tensor), hvd::sum);          // BAD
    comm.allreduce(hvd::fuse(tensor.data[0]), hvd::sum);  // GOOD
}
