// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the call writes this tensor, but its elements are const

#include <utility>
#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.allreduce(std::as_const(values), hvd::sum);  // BAD
    comm.allreduce(values, hvd::sum);                 // GOOD
}
