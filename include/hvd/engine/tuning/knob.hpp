// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "../../core/settings/tuned_settings.hpp"

namespace hvd::inline v0::detail {

// The calls that an autotune can improve, and so the thresholds that play a part in them.
struct tuned_calls {
    bool of_engine = false;
    bool cross_nodes = false;
    bool makes_buckets = false;  // the trainer takes other buckets when it is told to
};

// A threshold or choice that a search may change, and the values that it tries: the default times
// powers of four. A size of units or buckets is tried at both ends of these, too: tensors of some
// kilobytes by themselves, and all together.
class knob {
public:
    explicit knob(const setting& s) : setting_(&s) {
        const engine_tuning defaults;
        const std::int64_t middle = std::min(get(defaults), most());
        if (s.least == 0) values_.push_back(0);
        if (s.kind == setting_kind::flag) {
            values_.push_back(1);
        } else if (s.kind == setting_kind::span) {
            for (const std::int64_t us : {50, 250, 1000, 5000}) values_.push_back(us * 1000);
        } else {
            for (int power = -10; power <= 6; power += 2) add_near(scaled(middle, power));
            if (has_ends()) add_near(most());
        }
        sort_unique(values_);
    }

    std::string_view key() const { return setting_->key; }
    std::int64_t get(const engine_tuning& t) const {
        const void* const member = setting_->member(&const_cast<engine_tuning&>(t));
        if (setting_->kind == setting_kind::span)
            return static_cast<const time_span*>(member)->nanoseconds;
        if (setting_->kind == setting_kind::flag) return *static_cast<const bool*>(member);
        return std::int64_t(*static_cast<const std::size_t*>(member));
    }
    engine_tuning with(engine_tuning t, std::int64_t value) const {
        void* const member = setting_->member(&t);
        if (setting_->kind == setting_kind::span)
            *static_cast<time_span*>(member) = time_span::of_nanoseconds(value);
        else if (setting_->kind == setting_kind::flag) *static_cast<bool*>(member) = value != 0;
        else *static_cast<std::size_t*>(member) = std::size_t(value);
        return t;
    }

    // The values to try beside `now`: the next ones, one that is far away on each side, the ends
    // of its range, and `others`, which are the default and the start.
    std::vector<std::int64_t> around(std::int64_t now, std::vector<std::int64_t> others) const {
        std::vector<std::int64_t> ladder = values_;
        ladder.push_back(now);
        sort_unique(ladder);
        const auto at = std::find(ladder.begin(), ladder.end(), now) - ladder.begin();
        for (const int step : {-3, -1, 1, 3})
            if (at + step >= 0 && at + step < std::ptrdiff_t(ladder.size()))
                others.push_back(ladder[std::size_t(at + step)]);
        if (has_ends()) others.insert(others.end(), {values_.front(), values_.back()});
        sort_unique(others);
        others.erase(std::remove(others.begin(), others.end(), now), others.end());
        return others;
    }

private:
    static std::int64_t scaled(std::int64_t middle, int power) {
        return power < 0 ? middle >> -power : middle << power;
    }
    // Chunks are multiples of a cache line.
    bool has_ends() const {
        return setting_->kind == setting_kind::bytes && setting_->multiple == 1;
    }
    // Communicators check the range. Much below 64 bytes and above 1 GiB nothing changes.
    std::int64_t most() const { return std::min(setting_->most, std::int64_t(tuning::GiB)); }
    void add_near(std::int64_t value) {
        if (value < std::max<std::int64_t>(64, setting_->least) || value > most()) return;
        if (value % setting_->multiple == 0) values_.push_back(value);
    }
    static void sort_unique(std::vector<std::int64_t>& values) {
        std::sort(values.begin(), values.end());
        values.erase(std::unique(values.begin(), values.end()), values.end());
    }

    const setting* setting_;
    std::vector<std::int64_t> values_;  // ascending
};

inline bool plays_a_part(std::string_view key, const tuned_calls& calls) {
    if (key.starts_with("engine.")) return calls.of_engine;
    if (key == "tuning.bucket_bytes") return calls.makes_buckets;
    return calls.cross_nodes;
}

// The thresholds that a search changes. `fixed` has keys with commas between them.
// @throws hvd::usage_error for a key that is none.
[[gnu::cold]] inline std::vector<knob> knobs_of(const tuned_calls& calls, std::string_view fixed,
                                                int rank) {
    std::vector<std::string_view> kept;
    while (!fixed.empty()) {
        const std::size_t comma = std::min(fixed.find(','), fixed.size());
        std::string_view key = fixed.substr(0, comma);
        while (key.starts_with(' ')) key.remove_prefix(1);
        while (key.ends_with(' ')) key.remove_suffix(1);
        kept.push_back(key);
        fixed.remove_prefix(std::min(comma + 1, fixed.size()));
    }
    std::vector<knob> knobs;
    for (const setting& s : settings_of<engine_tuning>::table) {
        const bool is_kept = std::erase(kept, std::string_view(s.key)) > 0;
        if (!is_kept && plays_a_part(s.key, calls)) knobs.emplace_back(s);
    }
    if (!kept.empty())
        throw usage_error(rank, text("hvd: .fixed of an autotune names '", kept.front(),
                                     "', which is none of its thresholds"));
    return knobs;
}

}  // namespace hvd::inline v0::detail
