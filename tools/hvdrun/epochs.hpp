// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "meeting_place.hpp"

namespace hvdrun {

// How one epoch of an elastic job became the next. Processes are named by their slots.
struct epoch_change {
    std::vector<int> members;  // by rank
    std::vector<int> joined, left, lost;
    std::string why;      // processes are no longer there
    double recovery = 0;  // seconds from the first loss to the begin of the epoch
};

// The members of the epoch that runs, and how they went.
class epochs {
public:
    // A process of the slot has ended, or its connection has. `was_told` says that hvdrun ended it.
    void note_end(int slot, double at, const std::string& why, bool was_told);
    void note_lost_connection(int slot, double at);
    // Returns nothing if none of its members has the job's state: then the last epoch stays.
    std::optional<epoch_change> begin(const job_event& next);

    int number() const { return number_; }
    std::int64_t step() const { return step_; }
    int size() const { return int(members_.size()); }
    bool has(int slot) const { return find(slot) != nullptr; }
    // False for a process that the others have lost or that has not joined; true before the first
    // epoch.
    bool takes_part(int slot) const;
    // Since when the epochs go on without the process of the slot, which has not ended.
    double missed_since(int slot) const;
    // Nobody is left who has the job's state.
    bool all_have_ended() const;

private:
    struct member {
        int slot;
        std::uint64_t id;
        bool has_ended = false, was_told = false, is_lost = false;
        std::string why = {};
    };
    const member* find(int slot) const;
    member* find(int slot);
    void note_time(double at);

    int number_ = 0;
    std::int64_t step_ = 0;  // from which the epoch goes on
    std::vector<member> members_;
    double lost_at_ = 0;  // 0: no member is lost
    std::map<int, double> missed_;
};

}  // namespace hvdrun
