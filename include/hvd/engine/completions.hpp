// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <algorithm>

#include "../platform/clock.hpp"
#include "../platform/futex.hpp"

namespace hvd::inline v0::detail {

// Threads sleep here until something is complete.
class completions {
public:
    using ticket = std::uint32_t;

    // Take a ticket, look whether there is a reason to sleep, and sleep with the ticket: what is
    // announced in between is not missed.
    ticket take_ticket() const { return announced_.load_in_order(); }

    // `before` is called unless something was announced meanwhile.
    template <class F>
    void sleep(ticket seen, time_point limit, F before) {
        sleepers_.add(1);
        if (announced_.load_in_order() == seen) {
            before();
            const std::int64_t left =
                limit == never ? tuning::second * 3600 : std::max<std::int64_t>(limit - now(), 0);
            sleep_while(announced_, seen, left);
        }
        sleepers_.add(-1);
    }

    void announce() {
        announced_.add(1);
        if (sleepers_.load_in_order() > 0) wake_sleepers(announced_);
    }

    bool anybody_sleeps() const { return sleepers_.load() > 0; }

private:
    atomic<std::uint32_t> announced_{0};
    atomic<int> sleepers_{0};
};

}  // namespace hvd::inline v0::detail
