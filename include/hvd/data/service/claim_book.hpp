// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "../../platform/thread.hpp"
#include "../../protocol/agreement.hpp"

namespace hvd::inline v0::detail {

// A rank asks for its next batch of a run, or only tells how many it has had.
struct claim_request {
    std::uint64_t run = 0;  // of the loaders of all ranks, which count them alike
    std::uint64_t seed = 0, epoch = 0, first = 0, steps = 0;  // of all ranks in the run
    std::uint64_t claim = 0;     // its number. A repeated one has the answer that it had
    std::uint64_t returned = 0;  // batches of these claims that the trainer has had
};

struct claim_answer {
    static constexpr std::uint64_t none = UINT64_MAX;
    std::uint64_t step = none;  // of all ranks
    std::uint64_t done = 0;     // the steps before this one were had by the ranks that claimed them
};

// The steps of a training's runs, each for the rank that claims it. Rank 0 keeps it.
class claim_book {
public:
    explicit claim_book(int ranks) : latest_(std::size_t(ranks)) {}

    // @throws usage_error for ranks whose runs differ
    claim_answer answer(int rank, const claim_request& r) {
        const lock_guard held(mutex_);
        std::uint64_t& latest = latest_[std::size_t(rank)];
        if (r.run < latest) return {};  // it has begun another one
        latest = r.run;
        forget_those_that_are_over();
        run& of = run_of(rank, r);
        claimant& mine = of.ranks[std::size_t(rank)];
        for (; mine.returned < r.returned && !mine.open.empty(); ++mine.returned)
            mine.open.pop_front();
        if (r.claim == mine.claims + 1) claim(of, mine);
        return {mine.last, done(of)};
    }

private:
    struct claimant {
        std::uint64_t claims = 0, returned = 0, last = claim_answer::none;
        std::deque<std::uint64_t> open;  // claimed, and not had by the trainer
    };
    struct run {
        claim_request begin;
        int begun_by;
        std::uint64_t next;  // step
        std::vector<claimant> ranks;
    };

    static void claim(run& of, claimant& mine) {
        ++mine.claims;
        mine.last = of.next < of.begin.steps ? of.next++ : claim_answer::none;
        if (mine.last != claim_answer::none) mine.open.push_back(mine.last);
    }
    static std::uint64_t done(const run& of) {
        std::uint64_t least = of.next;
        for (const claimant& c : of.ranks)
            if (!c.open.empty()) least = std::min(least, c.open.front());
        return least;
    }

    run& run_of(int rank, const claim_request& r) {
        const auto found = runs_.find(r.run);
        if (found == runs_.end())
            return runs_.emplace(r.run, run{r, rank, 0, std::vector<claimant>(latest_.size())})
                .first->second;
        const claim_request& b = found->second.begin;
        if (b.seed != r.seed || b.epoch != r.epoch || b.first != r.first || b.steps != r.steps)
            refuse(rank, "rank ", rank, " begins epoch ", r.epoch, " of seed ", r.seed,
                   " behind sample ", r.first, " with ", r.steps, " batches, and rank ",
                   found->second.begun_by, " epoch ", b.epoch, " of seed ", b.seed,
                   " behind sample ", b.first, " with ", b.steps,
                   ": the ranks of a first_come_first_served service begin the same");
        return found->second;
    }
    void forget_those_that_are_over() {
        const std::uint64_t least = *std::min_element(latest_.begin(), latest_.end());
        runs_.erase(runs_.begin(), runs_.lower_bound(least));
    }

    mutex mutex_;
    std::vector<std::uint64_t> latest_;  // run of each rank
    std::map<std::uint64_t, run> runs_;
};

}  // namespace hvd::inline v0::detail
