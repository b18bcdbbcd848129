// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: there is no MPI here: <mpi.h> is not on the include path (compile with mpicxx
// FLAGS: -DHVD_WITH_MPI=0

#include <vector>

#include <hvd/hvd.hpp>

void call(std::vector<float>& values) {
    auto world = hvd::communicator<hvd::mpi>::world();      // BAD
    auto world = hvd::communicator<hvd::threads>::world();  // GOOD
    world.allreduce(values, hvd::sum);
}
