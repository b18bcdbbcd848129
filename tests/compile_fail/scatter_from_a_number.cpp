// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: a root is written hvd::root{0}, not 0

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    auto mine = comm.scatter(values, 0);             // BAD
    auto mine = comm.scatter(values, hvd::root{0});  // GOOD
}
