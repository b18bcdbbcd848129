// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: rank 1 aborts the job
#include <stdexcept>

#include <hvd/mpi.hpp>

int main(int argc, char** argv) {
    hvd::mpi_environment environment{argc, argv};
    auto world = hvd::communicator<hvd::mpi>::world();
    float value = 1;
    world.allreduce(value, hvd::sum);
    if (world.rank() == 1) throw std::runtime_error("the disk is full");
    world.allreduce(value, hvd::sum);
}
