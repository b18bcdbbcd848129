// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the operation is missing: write hvd::sum, hvd::average

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.scan(values);            // BAD
    comm.scan(values, hvd::sum);  // GOOD
}
