// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: a pointer does not say how many elements there are: write hvd::view(pointer, count)

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, float* data, std::size_t count) {
    comm.allreduce(data, count, hvd::sum);             // BAD
    comm.allreduce(hvd::view(data, count), hvd::sum);  // GOOD
}
