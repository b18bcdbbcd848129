// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the operation comes before the root

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& x) {
    comm.reduce(x, hvd::root{0}, hvd::sum);  // BAD
    comm.reduce(x, hvd::sum, hvd::root{0});  // GOOD
}
