// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// libhvd: what programs on any backend have in common, and hvd::threads.
#include <hvd/threads.hpp>

#include <hvd/comm/threads_library.hpp>
#include <hvd/kernel/cast_library.hpp>
#include <hvd/kernel/reduce_library.hpp>
