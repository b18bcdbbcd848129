// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: a tensor needs a contiguous range (std::vector, std::span, std::array)

#include <list>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::list<float>& values) {
    comm.allreduce(values, hvd::sum);          // BAD
    comm.allreduce(values.front(), hvd::sum);  // GOOD
}
