// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the result would be lost with this temporary, which owns its memory; name it first

#include <span>
#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.allreduce(std::vector(values), hvd::sum);  // BAD
    comm.allreduce(std::span(values), hvd::sum);    // GOOD
}
