// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: numbers in braces are no tensor: name it first
// LINES: clang 13, it shows the way to the call

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& x) {
    const auto all = comm.allgather({1.f, 2.f});  // BAD
    const auto all = comm.allgather(x);           // GOOD
}
