// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// libhvd: training, with the checkpoints, which need nlohmann-json here and nowhere else.

// A program may compile this file with the flags of its other files.
#undef HVD_COMPILED
#ifndef HVD_BUILDS_LIBRARY
#define HVD_BUILDS_LIBRARY
#endif

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

#include <hvd/kernel/update_library.hpp>
#include <hvd/train/checkpoint/threads_library.hpp>
#include <hvd/train/threads_library.hpp>
