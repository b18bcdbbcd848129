// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: an asynchronous call is not complete until its request is waited for
// FLAGS: -Werror=unused-result
// LINES: gcc 17, it shows two declarations

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.allreduce_async(values, hvd::sum);         // BAD
    comm.allreduce_async(values, hvd::sum).wait();  // GOOD
}
