// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <string>
#include <vector>

#include "../../execution/call_driver.hpp"
#include "../negotiation/decision.hpp"
#include "tensor_call.hpp"

namespace hvd::inline v0::detail {

// The numbers of elements of an allgather or alltoall of device tensors, which the ranks tell each
// other on the host. All of them know those of all, and so refuse together.
class engine_counts {
public:
    // `own` is null on a rank that has joined: it gives nothing, and needs no room.
    engine_counts(call_driver& ranks, const agreed_tensor& t, const device_tensor_call* own,
                  time_point limit)
        : rank_(ranks.rank()), size_(std::size_t(ranks.size())) {
        const bool one = t.signature.call.kind == collective::allgather;
        std::vector<std::int64_t> mine;
        mine.push_back(own == nullptr ? -1 : std::int64_t(own->room));
        if (one) mine.push_back(own == nullptr ? 0 : std::int64_t(own->calls[0].entry.count));
        else
            for (const std::size_t n : own->sent) mine.push_back(std::int64_t(n));
        parts_ = mine.size() - 1;
        rooms_.resize(size_);
        given_.resize(size_ * parts_);
        constexpr std::size_t most = max_dimensions;  // numbers that travel at once
        for (std::size_t first = 0; first < mine.size(); first += most) {
            const std::size_t n = std::min(most, mine.size() - first);
            const auto all = numbers_of_all(ranks, "the rows of a device tensor",
                                            {mine.data() + first, n}, limit);
            for (std::size_t r = 0; r < size_; ++r)
                for (std::size_t k = 0; k < n; ++k) take(r, first + k, all[r * n + k]);
        }
    }

    // The elements that this rank gets from each rank.
    std::vector<std::size_t> from_each() const { return to(std::size_t(rank_)); }

    void refuse_if_too_many(const std::string& name) const {
        for (std::size_t r = 0; r < size_; ++r) {
            if (rooms_[r] < 0) continue;
            std::size_t needed = 0;
            for (const std::size_t n : to(r)) needed += n;
            if (needed <= std::size_t(rooms_[r])) continue;
            const message why = text("hvd: '", name, "': into() on rank ", r, " has ", rooms_[r],
                                     " elements, and ", needed, " come from all ranks");
            if (int(r) == rank_) throw usage_error(rank_, why);
            throw peer_error(rank_, why, {int(r)});
        }
    }

private:
    void take(std::size_t r, std::size_t place, std::int64_t number) {
        if (place == 0) rooms_[r] = number;
        else given_[r * parts_ + place - 1] = std::size_t(number);
    }
    std::vector<std::size_t> to(std::size_t rank) const {
        std::vector<std::size_t> counts;
        for (std::size_t from = 0; from < size_; ++from)
            counts.push_back(given_[from * parts_ + (parts_ > 1 ? rank : 0)]);
        return counts;
    }

    int rank_;
    std::size_t size_, parts_ = 1;
    std::vector<std::int64_t> rooms_;  // -1: the rank has joined
    std::vector<std::size_t> given_;   // of rank 0 to each rank, or to all, then of rank 1
};

}  // namespace hvd::inline v0::detail
