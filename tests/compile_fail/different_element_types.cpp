// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: input and output have different element types

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, const std::vector<float>& in) {
    std::vector<double> out;  // BAD
    std::vector<float> out;   // GOOD
    comm.allreduce(in, out, hvd::sum);
}
