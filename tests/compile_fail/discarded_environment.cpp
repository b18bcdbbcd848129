// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: MPI ends with its environment
// FLAGS: -Werror=unused-value -Werror=unused-result

#include <hvd/mpi.hpp>

int main(int argc, char** argv) {
    hvd::mpi_environment{argc, argv};      // BAD
    hvd::mpi_environment env{argc, argv};  // GOOD
}
