// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: <mpi.h> was not found: compile with mpicxx, or add the flags of your MPI

#include <hvd/mpi.hpp>      // BAD
#include <hvd/threads.hpp>  // GOOD
