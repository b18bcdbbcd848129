// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// libhvd: hvd::tcp, its engine, and training on it.

// A program may compile this file with the flags of its other files.
#undef HVD_COMPILED
#ifndef HVD_BUILDS_LIBRARY
#define HVD_BUILDS_LIBRARY
#endif

#include <hvd/tcp.hpp>
#include <hvd/train.hpp>

#include <hvd/engine/tcp_library.hpp>
#include <hvd/train/checkpoint/tcp_library.hpp>
#include <hvd/train/tcp_library.hpp>
