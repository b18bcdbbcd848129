// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <sched.h>

#include <stdexcept>
#include <string>

namespace bench {

/// Keeps the calling thread on one of the cores that the process may use: rank r on core (r mod
/// cores).
inline void bind_to_core(int rank) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        throw std::runtime_error("bench: sched_getaffinity failed");
    int skip = rank % CPU_COUNT(&allowed);
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (!CPU_ISSET(core, &allowed) || skip-- > 0) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0)
            throw std::runtime_error("bench: rank " + std::to_string(rank) +
                                     " can't be bound to core " + std::to_string(core));
        return;
    }
}

}  // namespace bench
