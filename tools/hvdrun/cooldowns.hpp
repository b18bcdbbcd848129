// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>

namespace hvdrun {

constexpr double never = std::numeric_limits<double>::infinity();

// The seconds of a cooldown: it begins with the lower bound, doubles with each failure in a row,
// and ends at the upper one. A process that lived as long as that was no failure at its start.
struct cooldown_rules {
    double low = 1, high = 60;
};

// Knows when a slot may have a process again after failures. A slot is given up after several in a
// row, and a host rests when several of its slots have failed. Times come from the caller, and so
// do random numbers from 0 to 1.
class cooldowns {
public:
    static constexpr int most_in_a_row = 5;
    static constexpr std::size_t slots_of_bad_host = 3;

    cooldowns(const cooldown_rules& rules, std::function<double()> random)
        : rules_(rules), random_(std::move(random)) {}

    void note_failure(int slot, const std::string& host, double lived, double now);
    void forget(int slot) { slots_.erase(slot); }
    // The time from which the slot may be used.
    double free_at(int slot, const std::string& host) const;

private:
    struct of_slot {
        int in_a_row = 0;
        double until = -never;
    };
    struct of_host {
        std::set<int> failed;  // in a row
        double until = -never;
    };

    double length(int in_a_row) const;

    const cooldown_rules rules_;
    const std::function<double()> random_;
    std::map<int, of_slot> slots_;
    std::map<std::string, of_host> hosts_;
};

}  // namespace hvdrun
