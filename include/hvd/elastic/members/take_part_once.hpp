// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <vector>

#include "../../core/settings/tcp_options.hpp"
#include "../../platform/thread.hpp"
#include "../../transport/tcp/job_secret.hpp"

namespace hvd::inline v0::detail {

// The others would take a process that comes again for a newcomer, after the end of their job
// or inside of it.
inline void take_part_once(const tcp_options& own, const shared_secret& secret) {
    struct part {
        int rank;
        shared_secret secret;
    };
    static mutex guard;
    static std::vector<part> known;
    const lock_guard lock(guard);
    if (std::ranges::any_of(known, [&](const part& p) {
            return p.rank == own.rank && equal_digests(p.secret, secret);
        }))
        throw usage_error(own.rank,
                          text("hvd: elastic::run a second time in the job at ", own.rendezvous,
                               ": a process takes part in it once (HVD_RANK=", own.rank, ")"));
    known.push_back({own.rank, secret});
}

}  // namespace hvd::inline v0::detail
