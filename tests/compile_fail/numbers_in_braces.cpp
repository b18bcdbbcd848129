// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: numbers in braces are no tensor: name it first
// LINES: clang 13, it shows the way to the call

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& x) {
    comm.allreduce({1.f, 2.f}, hvd::sum);  // BAD
    comm.allreduce(x, hvd::sum);           // GOOD
}
