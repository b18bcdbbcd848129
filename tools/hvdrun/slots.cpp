// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "slots.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace hvdrun {

void slots::set_hosts(const host_list& hosts) {
    for (slot& one : all_) one.is_there = false;
    for (const host_slots& host : hosts)
        for (int i = 0; i < host.slots; ++i) show(host.host, i);
    for (std::size_t i = 0; i < all_.size(); ++i)
        if (!all_[i].is_there) cooldowns_.forget(int(i));
}

void slots::show(const std::string& host, int index) {
    for (slot& one : all_)
        if (one.host == host && one.index == index) {
            one.is_there = true;
            return;
        }
    all_.push_back({host, index, true});
}

std::vector<placement> slots::take_starts(double now) {
    std::vector<placement> taken;
    int room = is_closed_ ? 0 : rules_.most - number_of(state::used) - number_of(state::done);
    for (std::size_t i = 0; i < all_.size() && room > 0; ++i) {
        slot& one = all_[i];
        if (!one.is_there || one.now != state::free || free_at(i) > now) continue;
        one.now = state::used;
        taken.push_back({int(i), one.host, one.index});
        --room;
    }
    std::map<std::string, int> sizes;
    for (const slot& one : all_) sizes[one.host] += one.now == state::used ? 1 : 0;
    for (placement& place : taken) place.local_size = sizes[place.host];
    return taken;
}

void slots::end_process(int number, process_end how, double lived, double now) {
    slot& one = all_[std::size_t(number)];
    one.now = how == process_end::well ? state::done : state::free;
    if (how == process_end::well && rules_.is_elastic) close();
    if (how != process_end::by_failure) return;
    has_failure_ = true;
    cooldowns_.note_failure(number, one.host, lived, now);
}

std::optional<std::string> slots::obstacle(double now) {
    if (is_closed_) return {};
    if (has_failure_ && !rules_.is_elastic) return "";
    if (number_of(state::used) + number_of(state::done) == 0) return "no process is left";
    if (usable() >= rules_.least) {
        too_few_since_ = never;
        return {};
    }
    const std::string few = "only " + std::to_string(usable()) + " of at least " +
                            std::to_string(rules_.least) + " slots (--min-np) ";
    if (!rules_.has_discovery) return few + "can be used";
    too_few_since_ = std::min(too_few_since_, now);
    if (now <= too_few_since_ + rules_.patience) return {};
    return few + "were there for " + std::to_string(std::lround(rules_.patience)) +
           " s (--elastic-timeout)";
}

std::optional<std::string> slots::shortfall() const {
    const int done = number_of(state::done);
    if (done >= rules_.least) return {};
    return "only " + std::to_string(done) + " of at least " + std::to_string(rules_.least) +
           " ranks (--min-np) ended with 0";
}

bool slots::awaits_time(double now) const {
    if (is_closed_) return false;
    for (std::size_t i = 0; i < all_.size(); ++i)
        if (all_[i].is_there && all_[i].now == state::free && free_at(i) > now &&
            free_at(i) < never)
            return true;
    return too_few_since_ < never;
}

int slots::number_of(state now) const {
    int n = 0;
    for (const slot& one : all_) n += one.now == now ? 1 : 0;
    return n;
}

// The slots that have a process, or will have one after their cooldown.
int slots::usable() const {
    int n = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
        const slot& one = all_[i];
        n += one.is_there && (one.now != state::free || free_at(i) < never) ? 1 : 0;
    }
    return n;
}

}  // namespace hvdrun
