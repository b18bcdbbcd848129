// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: a span of time has a unit: std::chrono::seconds(30), or 30s

#include <chrono>
#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& x) {
    comm.allreduce(x, hvd::sum, {.timeout = 30});                        // BAD
    comm.allreduce(x, hvd::sum, {.timeout = std::chrono::seconds(30)});  // GOOD
}
