// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include "../../core/lean/atomic.hpp"
#include "../../core/tuning.hpp"
#include "../../platform/futex.hpp"

namespace hvd::inline v0::detail {

// Lets ranks of a node sleep until the last of them has come. While nobody sleeps, a rank that
// shows something pays for a fence and a look at a count that rarely changes.
//
// The rank that completes what the others wait for rings, and nobody else: the others would wake
// them in vain, which costs more than the call where ranks outnumber the processors.
//
// Nobody sleeps on when the bell should wake him. A sleeper counts itself, and then looks for the
// last time; the other rank shows something, and then looks at the count. Both make a full fence in
// between, so one of the two sees the other. If both do, the bell has changed or wakes the sleeper.
// In the same way at least one of two ranks that come at the same time sees that all have come.
//
// A rank that dies while it sleeps stays in the count. The others then make a system call for each
// bell, and nothing else changes.
class alignas(tuning::cache_line) sleepers {
public:
    // True if somebody sleeps. A rank asks that after it has shown something, and rings if it has
    // completed what the others wait for.
    bool are_there() const noexcept {
        full_fence();
        return count_.load_relaxed() != 0;
    }

    // Wakes all that sleep.
    [[gnu::cold, gnu::noinline]] void ring() noexcept {
        bell_.add(1);
        wake_sleepers(bell_);
    }

    // Sleeps until the bell rings, for some time at most. `over` tells if that for which it would
    // ring is there.
    template <class F>
    void sleep(std::int64_t nanoseconds, F over) noexcept {
        count_.add(1);
        full_fence();
        const std::uint32_t before = bell_.load();
        if (!over()) sleep_while(bell_, before, nanoseconds);
        count_.add(std::uint32_t(-1));
    }

private:
    atomic<std::uint32_t> count_{0}, bell_{0};
};

}  // namespace hvd::inline v0::detail
