// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the result of the call is what it returns
// FLAGS: -Werror=unused-result

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.reduce_scatter(values, hvd::sum);                    // BAD
    const auto mine = comm.reduce_scatter(values, hvd::sum);  // GOOD
}
