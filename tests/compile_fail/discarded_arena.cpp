// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the memory of an arena ends with it
// FLAGS: -Werror=unused-result

#include <hvd/arena.hpp>
#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm) {
    hvd::arena{comm, 1024};         // BAD
    hvd::arena memory{comm, 1024};  // GOOD
}
