// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: a name is an option: {.name = …}

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& x) {
    comm.allreduce(x, hvd::sum, "loss");            // BAD
    comm.allreduce(x, hvd::sum, {.name = "loss"});  // GOOD
}
