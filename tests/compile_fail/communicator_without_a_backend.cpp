// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the backend is missing: write hvd::communicator<hvd::mpi>

#include <vector>

#include <hvd/mpi.hpp>

void call(std::vector<float>& values) {
    hvd::communicator comm(MPI_COMM_WORLD, hvd::borrow);            // BAD
    hvd::communicator<hvd::mpi> comm(MPI_COMM_WORLD, hvd::borrow);  // GOOD
    comm.allreduce(values, hvd::sum);
    comm.barrier();
}
