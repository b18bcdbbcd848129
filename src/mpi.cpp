// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// libhvd: hvd::mpi, and training on it.
#include <hvd/mpi.hpp>
#include <hvd/train.hpp>

#include <hvd/train/checkpoint/mpi_library.hpp>
#include <hvd/train/mpi_library.hpp>
