// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cooldowns.hpp"
#include "hosts.hpp"

namespace hvdrun {

// A static job is one of a fixed number of processes, of which none may fail.
struct slot_rules {
    int least = 1, most = 1;     // processes
    bool is_elastic = false;     // processes may fail, and one that ends well ends the job
    bool has_discovery = false;  // slots may come later
    double patience = 600;       // seconds in which enough slots must come
    cooldown_rules cooldown = {};
};

// How a process has ended.
enum class process_end { well, by_failure, by_hvdrun };

// The slots of the hosts, which have processes or are free. They decide which processes a job
// starts and ends, and when it cannot go on. They keep their numbers.
class slots {
public:
    slots(const slot_rules& rules, std::function<double()> random)
        : rules_(rules), cooldowns_(rules.cooldown, std::move(random)) {}

    void set_hosts(const host_list& hosts);
    // The slots that get a process now.
    std::vector<placement> take_starts(double now);
    // False if the host has this slot no longer, so that its process must end.
    bool is_there(int slot) const { return all_[std::size_t(slot)].is_there; }
    void end_process(int slot, process_end how, double lived, double now);
    // The job ends by itself: nothing is started any more, and failures end nothing.
    void close() { is_closed_ = true; }
    bool is_closed() const { return is_closed_; }
    int living() const { return number_of(state::used); }
    // Returns why the job cannot go on, or nothing. The reason may be empty if a failure is all.
    std::optional<std::string> obstacle(double now);
    // Says that fewer processes than the job needs have ended well, or returns nothing.
    std::optional<std::string> shortfall() const;
    // True while a slot waits for its time.
    bool awaits_time(double now) const;

private:
    enum class state { free, used, done };
    struct slot {
        std::string host;
        int index;  // among those of the host
        bool is_there = false;
        state now = state::free;
    };

    void show(const std::string& host, int index);
    int number_of(state now) const;
    int usable() const;
    double free_at(std::size_t i) const { return cooldowns_.free_at(int(i), all_[i].host); }

    const slot_rules rules_;
    cooldowns cooldowns_;
    std::vector<slot> all_;
    bool has_failure_ = false;
    bool is_closed_ = false;
    double too_few_since_ = never;
};

}  // namespace hvdrun
