// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to timelines. It includes hvd.hpp, unless the door of a backend stands before it.
#ifdef HVD_BACKEND_DOOR
#include "comm/without_mpi.hpp"
#include "threads.hpp"
#else
#include "hvd.hpp"
#endif

#include "comm/start_timeline.hpp"
