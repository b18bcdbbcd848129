// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// libhvd: what programs on any backend have in common, and hvd::threads.

// A program may compile this file with the flags of its other files.
#undef HVD_COMPILED
#ifndef HVD_BUILDS_LIBRARY
#define HVD_BUILDS_LIBRARY
#endif

#include <hvd/threads.hpp>

#include <hvd/comm/threads_library.hpp>
#include <hvd/engine/threads_library.hpp>
#include <hvd/kernel/cast_library.hpp>
#include <hvd/kernel/reduce_library.hpp>
