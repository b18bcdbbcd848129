// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to hvd::mpi and hvd::direct<mpi>: communicators with all collectives, and
// mpi_environment.
#include "core/concepts.hpp"  // first, so that errors of wrong calls are shorter

#include "backend/direct.hpp"
#include "backend/mpi.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi_environment.hpp"
#include "version.hpp"
#ifdef HVD_COMPILED
#include "comm/mpi_library.hpp"
#endif
