// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to everything for the host: threads, and MPI where <mpi.h> is found, unless HVD_WITH_MPI
// (0 or 1) says otherwise. HVD_HAS_MPI says what it came to.
#if defined(HVD_WITH_MPI)
#define HVD_HAS_MPI HVD_WITH_MPI
#elif __has_include(<mpi.h>)
#define HVD_HAS_MPI 1
#else
#define HVD_HAS_MPI 0
#endif

#include "threads.hpp"
#if HVD_HAS_MPI
#include "mpi.hpp"
#endif

#include "backend/checked.hpp"
#include "backend/observed.hpp"
#include "observe/statistics.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

#if HVD_HAS_MPI
using default_backend = mpi;
using default_environment = mpi_environment;
#else
struct no_environment {};
using default_backend = threads;
using default_environment = no_environment;
#endif

}  // namespace detail
}  // namespace v0
}  // namespace hvd

#include "comm/default.hpp"
