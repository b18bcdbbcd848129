// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the operation is an argument: allreduce(x, hvd::sum)
// LINES: clang 13, it shows the way to the call

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& x) {
    comm.allreduce<hvd::sum>(x);  // BAD
    comm.allreduce(x, hvd::sum);  // GOOD
}
