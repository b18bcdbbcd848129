// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: no matching
// EXPECT: reduce_options
// LINES: gcc 35, it lists all overloads
// LINES: clang 22, it lists all overloads

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.allreduce(values, hvd::sum, {.scale = 0.5});     // BAD
    comm.allreduce(values, hvd::sum, {.prescale = 0.5});  // GOOD
}
