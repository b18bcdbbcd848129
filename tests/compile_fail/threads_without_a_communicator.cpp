// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: run_threads calls f(comm) on each rank: [](hvd::communicator<hvd::threads>& comm) { … }

#include <hvd/threads.hpp>

using communicator = hvd::communicator<hvd::threads>;

int main() {
    hvd::run_threads(2, [](communicator world) { world.barrier(); });   // BAD
    hvd::run_threads(2, [](communicator& world) { world.barrier(); });  // GOOD
}
