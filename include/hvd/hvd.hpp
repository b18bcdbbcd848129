// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to everything for the host: threads, and MPI if <mpi.h> is found. HVD_WITH_MPI (0 or 1)
// overrides that. HVD_HAS_MPI holds the decision.
#include "platform/has_mpi.hpp"
#include "threads.hpp"
#if HVD_HAS_MPI
#include "mpi.hpp"
#endif

#include "backend/checked.hpp"
#include "backend/observed.hpp"
#include "comm/arena.hpp"
#include "comm/default.hpp"
#include "observe/statistics.hpp"
