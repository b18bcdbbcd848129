// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// libhvd: hvd::mpi.
#include <hvd/mpi.hpp>

#include <hvd/comm/mpi_library.hpp>
