// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>

#include "../../comm/host_ranks_of.hpp"

namespace hvd::inline v0::detail {

// How far a rank is with work that NCCL does on all ranks together. A rank that another one left is
// lost.
enum class joining { under_way, done, lost };

// Works until all ranks are done, or throws on all of them. NCCL does not end such work while a
// rank is missing, so the ranks tell each other over the host, again and again, how far they are. A
// rank that failed is told to the others by that. `step(until)` goes on with the work, at most
// until then.
template <header_channel C, class Step>
void work_together(C& ranks, const char* name, const communicator_options& options,
                   time_point limit, Step&& step) {
    const auto give_up = [&](bool timed_out, const char* why) {
        throw_peer_error(timed_out, ranks.rank(),
                         text("hvd: ", name, " on rank ", ranks.rank(), ": ", why), {});
    };
    const time_point told = limit_to_tell(limit, options);
    std::int64_t patience = tuning::check_interval;
    int losses = 0;
    const auto round = [&] {
        call_header mine = agreement_header(name);
        const auto failure = attempt(mine, [&] {
            const time_point until = now() + patience;
            mine.count = std::uint64_t(step(until < limit ? until : limit));
            if (mine.count != std::uint64_t(joining::done) && now() > limit)
                give_up(true, "NCCL did not join the ranks in time");
        });
        bool done = true, lost = false;
        exchange_after(failure, [&] {
            for (const call_header& h : agree(ranks, mine, told)) {
                done = done && h.count == std::uint64_t(joining::done);
                lost = lost || h.count == std::uint64_t(joining::lost);
            }
        });
        // The rank that was lost may still find out why, and says it in the next round.
        if (lost && ++losses > 1) give_up(false, "NCCL lost a rank while it joined them");
        return done;
    };
    while (!round())
        if (patience < tuning::longest_join_round) patience *= 2;
}

// The place of a result that NCCL's thread writes. It is leaked if the thread can't be stopped,
// since a borrowed communicator is its owner's to abort.
template <class T>
class late_result {
public:
    T* get() const { return place_.get(); }
    void leak() { static_cast<void>(place_.release()); }

private:
    std::unique_ptr<T> place_ = std::make_unique<T>();
};

}  // namespace hvd::inline v0::detail
