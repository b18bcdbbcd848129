// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: a tensor needs a contiguous range (std::vector, std::span, std::array)

#include <deque>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::deque<float>& values) {
    comm.broadcast(values);     // BAD
    comm.broadcast(values[0]);  // GOOD
}
