// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to hvd::tcp: communicators with all collectives over TCP and shared memory, without MPI.
#include "standard.hpp"  // first: an older standard is told at once

// Next, so that errors of wrong calls are shorter:
#include "collective/call/checks.hpp"
#include "comm/serializer.hpp"

#include "comm/communicator.hpp"

#include "backend/tcp.hpp"
#include "version.hpp"

#define HVD_BACKEND_DOOR  // for engine.hpp and timeline.hpp

#ifdef HVD_COMPILED
#define HVD_TCP_DOOR
#include "library.hpp"
#endif
