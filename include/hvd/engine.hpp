// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to the engine, which matches tensors by name. It includes hvd.hpp, unless the door of a
// backend stands before it: a program on threads or tcp has nothing to do with MPI.
#ifdef HVD_BACKEND_DOOR
#include "comm/without_mpi.hpp"
#include "threads.hpp"
#else
#include "hvd.hpp"
#endif

#include "engine/engine.hpp"

#ifdef HVD_COMPILED
#define HVD_ENGINE_DOOR
#include "library.hpp"
#endif
