// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

namespace hvdrun {

// How far the processes of an elastic job are, as they report it about once a second.
class progress {
public:
    // A process counts the samples of all its steps so far.
    void note(int slot, double at, std::int64_t step, std::int64_t samples);
    // The process of the slot is gone. Another one counts anew.
    void forget(int slot) { reports_.erase(slot); }

    std::int64_t step() const { return step_; }
    // The sum of the processes' rates over the last seconds, or nothing if none counts samples.
    std::optional<double> samples_per_second(double now) const;

private:
    struct report {
        double at;
        std::int64_t samples;
    };
    using reports = std::deque<report>;

    static double rate_of(const reports& of_one, double now);

    std::map<int, reports> reports_;  // by slot
    std::int64_t step_ = 0;
};

}  // namespace hvdrun
