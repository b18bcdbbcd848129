// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "progress.hpp"

#include <algorithm>

namespace hvdrun {
namespace {

constexpr double span = 5;  // seconds

}  // namespace

// Two reports stay if steps take longer than the span.
void progress::note(int slot, double at, std::int64_t step, std::int64_t samples) {
    step_ = std::max(step_, step);
    reports& all = reports_[slot];
    all.push_back({at, samples});
    while (all.size() > 2 && all[1].at <= at - span) all.pop_front();
}

std::optional<double> progress::samples_per_second(double now) const {
    double sum = 0;
    bool any = false;
    for (const auto& [slot, of_one] : reports_) {
        any = any || of_one.back().samples > 0;
        sum += rate_of(of_one, now);
    }
    return any ? std::optional(sum) : std::nullopt;
}

// A process that reports nothing any more slows down.
double progress::rate_of(const reports& of_one, double now) {
    const report &first = of_one.front(), &last = of_one.back();
    if (of_one.size() < 2) return 0;
    const double seconds = std::max(last.at - first.at, now - last.at);
    return seconds > 0 ? double(last.samples - first.samples) / seconds : 0;
}

}  // namespace hvdrun
