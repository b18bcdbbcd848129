// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include <sched.h>

namespace hvd_info {

// The cores that the calling thread may run on. The set has room for 1024; with more, none is
// known.
inline std::vector<int> allowed_cores() {
    cpu_set_t all;
    CPU_ZERO(&all);
    std::vector<int> result;
    if (::sched_getaffinity(0, sizeof all, &all) != 0) return result;
    for (int i = 0; i < CPU_SETSIZE; ++i)
        if (CPU_ISSET(i, &all)) result.push_back(i);
    return result;
}

// Keeps the calling thread on one core.
inline void keep_to(int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
}

}  // namespace hvd_info
