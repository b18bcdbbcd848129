// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "../observe/clock_offset.hpp"
#include "../observe/observers.hpp"
#include "../observe/timeline.hpp"
#include "../platform/host_identity.hpp"
#include "communicator.hpp"

namespace hvd::inline v0 {
namespace detail {

inline timeline& timeline_of(timeline& t) { return t; }
template <class... O>
timeline& timeline_of(observers<O...>& all) {
    return all.template get<timeline>();
}

template <class Comm>
concept has_timeline = requires(Comm& comm) { timeline_of(comm.observer()); };

// Finds this rank's place by a few messages between all ranks. Ranks of one machine have one clock.
template <header_channel C>
trace_place place_of(C& channel) {
    constexpr int rounds = 10;
    const auto host = std::int64_t(host_identity());
    clock_offset offset;
    std::int64_t sent = 0, arrived = 0;  // in the round before
    bool has_clock_of_root = false;
    for (int round = 0; round < rounds; ++round) {
        const std::int64_t mine[] = {now(), arrived, host};
        const auto all = numbers_of_all(channel, "start_timeline", {mine, 3}, never);
        arrived = now();
        // The first numbers are those of rank 0: when it sent them, and when it had got all of the
        // round before.
        offset.arrived_from_root(all[0], arrived);
        if (round > 0) offset.arrived_at_root(sent, all[1]);
        sent = mine[0];
        has_clock_of_root = all[2] == host;
    }
    if (has_clock_of_root) return {channel.rank(), channel.size(), 0, 0};
    return {channel.rank(), channel.size(), offset.value(), offset.error()};
}

}  // namespace detail

/// Begins a timeline: each rank writes its events to a file of its own. Nothing is recorded if
/// `.file` is empty, so that the environment decides whether the program has a timeline.
///
/// It measures how far the clocks of the ranks differ, which the files keep for `hvd-trace`. All
/// ranks record, or none does and all throw. A timeline may be started and stopped while calls and
/// engines are under way, any number of times; a file that exists is replaced.
/// **Collective**: all ranks, with a communicator whose observer is a `timeline`, or several
/// `observers` with one.
/// @throws hvd::usage_error on a rank that can't write its file or has a timeline that runs, or for
/// options that can't work; hvd::peer_error on the others, with the reason; hvd::mismatch_error if
/// only some ranks give a file.
/// @snippet tests/docs/snippets.cpp timeline
template <class Comm>
    requires detail::has_timeline<Comm>
void start_timeline(Comm& comm, const timeline_options& options) {
    using namespace detail;
    session& own = access::session_of(comm);
    timeline& mine = timeline_of(comm.observer());
    agree_on_values(own, "start_timeline", never, [&](auto tell) {
        tell("file", options.file.empty() ? std::string_view("none") : std::string_view("given"));
    });
    if (options.file.empty()) return;
    const bool recorded = mine.records();
    try {
        const trace_place place = place_of(own);
        run_on_all(own, "start_timeline", never, [&] { mine.start(options, place); });
    } catch (...) {
        if (!recorded) mine.stop();
        throw;
    }
}

/// Ends the timeline of this rank, after all events so far. It does nothing if none is recorded.
/// @snippet tests/docs/snippets.cpp timeline
template <class Comm>
    requires detail::has_timeline<Comm>
timeline_summary stop_timeline(Comm& comm) {
    return detail::timeline_of(comm.observer()).stop();
}

}  // namespace hvd::inline v0
