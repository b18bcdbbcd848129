// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "communicator_settings.hpp"
#include "engine_settings.hpp"

namespace hvd::inline v0::detail {

// The entry of a setting, for a member of engine_tuning.
template <auto... Member>
constexpr setting tuned_entry(std::string_view key) {
    const auto moved = [](setting s) {
        s.member = &member_of<Member...>;
        return s;
    };
    for (const setting& s : settings_of<engine_options>::table)
        if (s.key == key) return moved(s);
    for (const setting& s : settings_of<communicator_options>::table)
        if (s.key == key) return moved(s);
    throw "a threshold that is no setting";  // found by the compiler
}

// The thresholds of a tuned engine are written as those of its options. An autotune searches for
// all of them.
template <>
struct settings_of<engine_tuning> {
    using o = engine_tuning;
    using t = tuning_options;

    static constexpr setting table[] = {
        tuned_entry<&o::fusion_threshold>("engine.fusion_threshold"),
        tuned_entry<&o::cycle_time>("engine.cycle_time"),
        tuned_entry<&o::largest_first>("engine.largest_first"),
        tuned_entry<&o::prediction>("engine.prediction"),
        tuned_entry<&o::tuning, &t::bucket_bytes>("tuning.bucket_bytes"),
        tuned_entry<&o::tuning, &t::chunk_bytes>("tuning.chunk_bytes"),
    };
};

}  // namespace hvd::inline v0::detail
