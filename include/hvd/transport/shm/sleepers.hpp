// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include "../../core/lean/atomic.hpp"
#include "../../core/tuning.hpp"
#include "../../platform/futex.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A word that a rank changes when it wakes those that wait for it.
using bell = atomic<std::uint32_t>;

// Lets ranks of a node sleep until another one has shown something. While nobody sleeps, a rank
// that shows something pays for a fence and a look at a count that rarely changes.
//
// Nobody sleeps on when the bell should wake him. A sleeper counts itself, and then looks for the
// last time; the other rank shows something, and then looks at the count. Both make a full fence in
// between, so one of the two sees the other. If both do, the bell has changed or wakes the sleeper.
//
// A rank that dies while it sleeps stays in the count. The others then make a system call for each
// bell, and nothing else changes.
class alignas(tuning::cache_line) sleepers {
public:
    // Wakes those that wait for something that this rank has just shown.
    void ring(bell& b) const noexcept {
        full_fence();
        if (count_.load_relaxed() != 0) [[unlikely]]
            wake(b);
    }

    // Sleeps until the bell rings, for some time at most. `over` tells if that for which it would
    // ring is there.
    template <class F>
    void sleep(const bell& b, std::int64_t nanoseconds, F over) noexcept {
        count_.add(1);
        full_fence();
        const std::uint32_t before = b.load();
        if (!over()) sleep_while(b, before, nanoseconds);
        count_.add(std::uint32_t(-1));
    }

private:
    [[gnu::cold, gnu::noinline]] static void wake(bell& b) noexcept {
        b.add(1);
        wake_sleepers(b);
    }

    atomic<std::uint32_t> count_{0};
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
