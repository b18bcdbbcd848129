// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: a communicator ends with its object
// FLAGS: -Werror=unused-result

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm) {
    comm.split(comm.rank() % 2);                    // BAD
    const auto part = comm.split(comm.rank() % 2);  // GOOD
}
