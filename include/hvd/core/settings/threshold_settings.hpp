// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "setting.hpp"

namespace hvd::inline v0::detail {

// Gives an entry the range of a threshold, which every communicator checks.
constexpr setting in_range_of(std::string_view threshold, setting s,
                              setting_kind kind = setting_kind::bytes) {
    s.kind = kind;
    for (const tuning_range& r : tuning_ranges)
        if (threshold == r.name) {
            s.multiple = std::int64_t(r.multiple);
            return between(std::int64_t(r.least), s, std::int64_t(r.most));
        }
    throw "a threshold without a range";  // found by the compiler
}

// A threshold of HVD_TUNING. Its name there is the last part of its name.
template <auto Member>
constexpr setting unstable(const char* name, setting_kind kind = setting_kind::bytes) {
    constexpr std::string_view prefix = "unstable.";
    return in_range_of(name, entry<Member>(name + prefix.size(), "", "", ""), kind);
}

template <>
struct settings_of<unstable_thresholds> {
    using o = unstable_thresholds;

    static constexpr setting table[] = {
        unstable<&o::least_in_place>("unstable.least_in_place"),
        unstable<&o::least_private>("unstable.least_private"),
        unstable<&o::most_by_all>("unstable.most_by_all"),
        unstable<&o::most_by_all_crowded>("unstable.most_by_all_crowded"),
        unstable<&o::most_by_two>("unstable.most_by_two"),
        unstable<&o::most_by_two_16_bit>("unstable.most_by_two_16_bit"),
        unstable<&o::exchange_chunk_bytes>("unstable.exchange_chunk_bytes"),
        unstable<&o::most_carried>("unstable.most_carried"),
        unstable<&o::least_carried>("unstable.least_carried"),
        unstable<&o::most_in_slices>("unstable.most_in_slices"),
        unstable<&o::most_broadcast_whole>("unstable.most_broadcast_whole"),
        unstable<&o::streaming_from>("unstable.streaming_from"),
        unstable<&o::fetched_ahead>("unstable.fetched_ahead"),
        unstable<&o::fanout>("unstable.fanout", setting_kind::count),
    };
    static_assert(sizeof table / sizeof *table * sizeof(std::size_t) == sizeof(o));
};

}  // namespace hvd::inline v0::detail
