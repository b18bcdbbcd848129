// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to hvd::threads: communicators, all collectives and run_threads, without MPI.
#include "standard.hpp"  // first: an older standard is told at once

// Next, so that errors of wrong calls are shorter:
#include "collective/call/checks.hpp"
#include "comm/serializer.hpp"

#include "comm/communicator.hpp"

#include "comm/run_threads.hpp"
#include "version.hpp"

#define HVD_BACKEND_DOOR  // for engine.hpp and timeline.hpp

#ifdef HVD_COMPILED
#define HVD_THREADS_DOOR
#include "library.hpp"
#endif
