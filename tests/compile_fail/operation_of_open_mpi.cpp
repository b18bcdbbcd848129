// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: (hvd::sum for MPI_SUM)

#include <vector>

#include <hvd/threads.hpp>

struct ompi_predefined_op_t;
extern ompi_predefined_op_t ompi_mpi_op_sum;
using MPI_Op = struct ompi_op_t*;
#define MPI_SUM (static_cast<MPI_Op>(static_cast<void*>(&(ompi_mpi_op_sum))))

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.allreduce(values, MPI_SUM);   // BAD
    comm.allreduce(values, hvd::sum);  // GOOD
}
