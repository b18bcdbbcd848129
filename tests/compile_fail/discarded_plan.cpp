// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: a plan does nothing until it is run
// FLAGS: -Werror=unused-result
// LINES: gcc 14, it shows two declarations

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.plan_allreduce(values, hvd::sum);        // BAD
    comm.plan_allreduce(values, hvd::sum).run();  // GOOD
}
