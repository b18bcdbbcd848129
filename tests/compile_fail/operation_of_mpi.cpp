// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: (hvd::sum for MPI_SUM)

#include <vector>

#include <hvd/mpi.hpp>

void call(hvd::communicator<hvd::mpi>& comm, std::vector<float>& values) {
    comm.allreduce(values, MPI_SUM);   // BAD
    comm.allreduce(values, hvd::sum);  // GOOD
}
