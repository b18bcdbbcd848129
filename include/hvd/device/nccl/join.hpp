// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../comm/host_ranks_of.hpp"
#include "session.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Joins the ranks by NCCL, all or none. NCCL does not end while a rank is missing, so the ranks
// tell each other over the bootstrap communicator, again and again, how far they are. A rank that
// failed is told to the others by that, and then all give NCCL's communicator up.
template <header_channel C>
void join_together(C& ranks, nccl_session& own, const ncclUniqueId& id, time_point limit) {
    constexpr const char* name = "communicator<nccl>";
    const time_point told = limit_to_tell(limit, own.options());
    std::int64_t patience = tuning::check_interval;
    int losses = 0;
    const auto round = [&] {
        call_header mine = agreement_header(name);
        const auto failure = attempt(mine, [&] {
            const time_point until = now() + patience;
            mine.count = std::uint64_t(own.join(id, until < limit ? until : limit));
            if (mine.count != std::uint64_t(joining::done) && now() > limit)
                throw peer_error(own.rank(),
                                 text("hvd: ", name, " on rank ", own.rank(),
                                      ": NCCL did not join the ranks in time"),
                                 {});
        });
        bool done = true, lost = false;
        exchange_after(failure, [&] {
            for (const call_header& h : agree(ranks, mine, told)) {
                done = done && h.count == std::uint64_t(joining::done);
                lost = lost || h.count == std::uint64_t(joining::lost);
            }
        });
        // The rank that was lost may still find out why, and says it in the next round.
        if (lost && ++losses > 1)
            throw peer_error(own.rank(),
                             text("hvd: ", name, " on rank ", own.rank(),
                                  ": NCCL lost a rank while it joined them"),
                             {});
        return done;
    };
    try {
        while (!round())
            if (patience < tuning::longest_join_round) patience *= 2;
    } catch (...) {
        own.leave();
        throw;
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
