// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <cstdint>

namespace hvd::inline v0::detail {

// The time by which the clock of a rank is ahead of that of rank 0, in nanoseconds, as far as
// messages between them tell: a message arrives after it was sent, so each one gives a bound.
class clock_offset {
public:
    void arrived_from_root(std::int64_t sent_there, std::int64_t arrived_here) {
        if (arrived_here - sent_there < most_) most_ = arrived_here - sent_there;
    }
    void arrived_at_root(std::int64_t sent_here, std::int64_t arrived_there) {
        if (sent_here - arrived_there > least_) least_ = sent_here - arrived_there;
    }

    // The middle of the bounds is wrong by `error` at most.
    std::int64_t value() const { return least_ + (most_ - least_) / 2; }
    std::int64_t error() const { return (most_ - least_ + 1) / 2; }

private:
    static constexpr std::int64_t far = INT64_MAX / 4;
    std::int64_t least_ = -far, most_ = far;
};

}  // namespace hvd::inline v0::detail
