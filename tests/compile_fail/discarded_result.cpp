// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: an asynchronous call is not complete until its result is waited for
// FLAGS: -Werror=unused-result
// LINES: gcc 16, it shows two declarations

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.allgather_async(values);               // BAD
    (void)comm.allgather_async(values).wait();  // GOOD
}
