// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: who frees the handle? Write hvd::borrow (you), or hvd::adopt (hvd), after it

#include <hvd/mpi.hpp>

void call() {
    hvd::communicator<hvd::mpi> world(MPI_COMM_WORLD);               // BAD
    hvd::communicator<hvd::mpi> world(MPI_COMM_WORLD, hvd::borrow);  // GOOD
}
