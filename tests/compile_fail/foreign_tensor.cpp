// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: or a type with hvd::view_traits

#include <vector>

#include <hvd/threads.hpp>

struct foreign_tensor {
    float* data;
    int count;
};

void call(hvd::communicator<hvd::threads>& comm, foreign_tensor& tensor) {
    comm.allreduce(tensor, hvd::sum);                                             // BAD
    comm.allreduce(hvd::view(tensor.data, std::size_t(tensor.count)), hvd::sum);  // GOOD
}
