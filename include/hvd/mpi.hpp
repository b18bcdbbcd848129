// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to hvd::mpi and hvd::direct<mpi>: communicators with all collectives, and
// mpi_environment.
#include "standard.hpp"  // first: an older standard is told at once

// Next, so that errors of wrong calls are shorter:
#include "collective/call/checks.hpp"
#include "comm/serializer.hpp"

#include "comm/communicator.hpp"

#include "backend/direct.hpp"
#include "backend/mpi.hpp"
#include "comm/mpi_environment.hpp"
#include "version.hpp"

#define HVD_BACKEND_DOOR  // for engine.hpp and timeline.hpp

#ifdef HVD_COMPILED
#define HVD_MPI_DOOR
#include "library.hpp"
#endif
