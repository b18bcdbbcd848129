// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: (hvd::sum for MPI_SUM)

#include <vector>

#include <hvd/threads.hpp>

using MPI_Op = int;
#define MPI_SUM (static_cast<MPI_Op>(0x58000003))

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.allreduce(values, MPI_SUM);   // BAD
    comm.allreduce(values, hvd::sum);  // GOOD
}
