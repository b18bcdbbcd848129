// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to everything for the host: threads, and MPI if <mpi.h> is found. HVD_WITH_MPI (0 or 1)
// overrides that. HVD_HAS_MPI holds the decision.
#include "standard.hpp"  // first: an older standard is told at once

// Next, so that errors of wrong calls are shorter:
#include "collective/call/checks.hpp"
#include "comm/serializer.hpp"

#include "comm/communicator.hpp"

#include "platform/has_mpi.hpp"
#include "threads.hpp"
#if HVD_HAS_MPI
#include "mpi.hpp"
#else
#include "backend/mpi_not_found.hpp"
#endif

#include "comm/default.hpp"
#include "comm/without_mpi.hpp"
