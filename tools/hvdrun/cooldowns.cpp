// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "cooldowns.hpp"

#include <algorithm>
#include <cmath>

namespace hvdrun {

void cooldowns::note_failure(int slot, const std::string& host, double lived, double now) {
    of_slot& s = slots_[slot];
    of_host& h = hosts_[host];
    if (lived >= rules_.high) {
        s.in_a_row = 0;
        h.failed.clear();
    }
    ++s.in_a_row;
    s.until = s.in_a_row < most_in_a_row ? now + length(s.in_a_row) : never;
    h.failed.insert(slot);
    if (h.failed.size() < slots_of_bad_host) return;
    h.until = now + rules_.high;
    h.failed.clear();
}

double cooldowns::free_at(int slot, const std::string& host) const {
    double until = -never;
    if (const auto s = slots_.find(slot); s != slots_.end()) until = s->second.until;
    if (const auto h = hosts_.find(host); h != hosts_.end())
        until = std::max(until, h->second.until);
    return until;
}

double cooldowns::length(int in_a_row) const {
    return std::min(rules_.high, std::ldexp(rules_.low, in_a_row - 1) + random_() * rules_.low);
}

}  // namespace hvdrun
