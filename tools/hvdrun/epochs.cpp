// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "epochs.hpp"

#include <algorithm>
#include <utility>

#include "cooldowns.hpp"

namespace hvdrun {

const epochs::member* epochs::find(int slot) const {
    for (const member& one : members_)
        if (one.slot == slot) return &one;
    return nullptr;
}

epochs::member* epochs::find(int slot) {
    return const_cast<member*>(std::as_const(*this).find(slot));
}

bool epochs::takes_part(int slot) const {
    const member* const one = find(slot);
    return number_ == 0 || (one != nullptr && !one->is_lost);
}

double epochs::missed_since(int slot) const {
    const auto found = missed_.find(slot);
    return found == missed_.end() ? never : found->second;
}

bool epochs::all_have_ended() const {
    return number_ > 0 && std::all_of(members_.begin(), members_.end(),
                                      [](const member& one) { return one.has_ended; });
}

void epochs::note_end(int slot, double at, const std::string& why, bool was_told) {
    missed_.erase(slot);
    member* const one = find(slot);
    if (one == nullptr || one->has_ended) return;
    one->has_ended = true;
    one->was_told = was_told;
    one->why = why;
    note_time(at);
}

void epochs::note_lost_connection(int slot, double at) {
    member* const one = find(slot);
    if (one == nullptr) return;
    one->is_lost = true;
    note_time(at);
}

void epochs::note_time(double at) { lost_at_ = lost_at_ == 0 ? at : std::min(lost_at_, at); }

std::optional<epoch_change> epochs::begin(const job_event& next) {
    epoch_change change;
    const auto has = [](const auto& all, const auto& wanted) {
        return std::any_of(all.begin(), all.end(),
                           [&](const auto& one) { return one.id == wanted.id; });
    };
    const auto goes_on = [&](const member& one) { return has(next.members, one); };
    for (const member& one : members_)
        if (!goes_on(one) && !one.has_ended) missed_.emplace(one.slot, next.at);
    if (number_ > 0 && std::none_of(members_.begin(), members_.end(), goes_on)) return {};
    for (const member& one : members_) {
        if (goes_on(one)) continue;
        (one.was_told ? change.left : change.lost).push_back(one.slot);
        const std::string why = one.has_ended ? one.why : "its connection has ended";
        change.why +=
            (change.why.empty() ? "rank " : "; rank ") + std::to_string(one.slot) + ": " + why;
    }
    for (const job_event::member& one : next.members) {
        change.members.push_back(one.slot);
        missed_.erase(one.slot);
        if (!has(members_, one)) change.joined.push_back(one.slot);
    }
    const bool has_lost = !change.lost.empty() || !change.left.empty();
    if (has_lost && lost_at_ > 0) change.recovery = std::max(0.0, next.at - lost_at_);
    std::vector<member> members;
    for (const job_event::member& one : next.members) {
        const auto known = std::find_if(members_.begin(), members_.end(),
                                        [&](const member& m) { return m.id == one.id; });
        members.push_back(known == members_.end() ? member{one.slot, one.id} : *known);
        members.back().is_lost = false;  // it has come back
    }
    members_ = std::move(members);
    number_ = next.epoch;
    step_ = std::max(next.step, std::int64_t(0));
    lost_at_ = 0;
    return change;
}

}  // namespace hvdrun
