// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: there is no MPI here: <mpi.h> is not on the include path (compile with mpicxx
// FLAGS: -DHVD_WITH_MPI=0

#include <hvd/hvd.hpp>

int main(int argc, char** argv) {
    hvd::mpi_environment env{argc, argv};  // BAD
    hvd::init();                           // GOOD
    return argc + (argv == nullptr);
}
