// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <cstdint>

namespace hvd::inline v0 {

/// The counts of an engine on one rank, since it was made. `engine::statistics()` gives them at any
/// time, to any thread.
/// @snippet tests/docs/snippets.cpp engine_statistics
struct engine_statistics {
    int rank = -1;
    int size = 0;
    std::uint64_t submitted = 0;        ///< tensors, refused ones too
    std::uint64_t completed = 0;        ///< tensors whose request is complete without an error
    std::uint64_t failed = 0;           ///< tensors whose request is complete with an error
    std::uint64_t bytes = 0;            ///< the bytes of this rank's completed tensors
    std::uint64_t units = 0;            ///< groups with tensors of this rank that have travelled
    std::uint64_t unit_tensors = 0;     ///< this rank's tensors in all these units
    std::uint64_t predicted_units = 0;  ///< the units that ran without a negotiation
    std::uint64_t predicted_steps = 0;  ///< steps whose units were all predicted
    std::uint64_t declined = 0;         ///< predictions that some rank has declined
    std::uint64_t cache_hits = 0;       ///< tensors that were negotiated by their number
    std::uint64_t cache_misses = 0;     ///< tensors that were negotiated by their name
    std::uint64_t messages_sent = 0;    ///< by this rank, to its neighbours in the tree
    std::uint64_t messages_received = 0;
    std::uint64_t stalls_warned = 0;   ///< lines that told of ranks that did not come
    std::uint64_t stalls_aborted = 0;  ///< 1 if this rank has ended the engine since one did not
    /// from submission to the begin of the unit, of all tensors; a predicted unit begins when this
    /// rank submits the last of its tensors
    double waiting_seconds = 0;
    double longest_wait_seconds = 0;  ///< the longest of these times
    double running_seconds = 0;       ///< of these units, with the wait for ranks that come later
    double longest_run_seconds = 0;   ///< the longest of these times

    /// `running_seconds`, by the name that statistics of a communicator have for it: the time
    /// inside collectives, with the wait for ranks that come later.
    double seconds() const noexcept { return running_seconds; }
    /// The tensors that are in flight.
    std::uint64_t in_flight() const noexcept { return submitted - completed - failed; }
    /// The tensors that ranks have asked each other for.
    std::uint64_t negotiated() const noexcept { return cache_hits + cache_misses; }
    /// The mean number of this rank's tensors in a unit; 0 without units.
    double tensors_per_unit() const noexcept {
        return units == 0 ? 0 : double(unit_tensors) / double(units);
    }
};

}  // namespace hvd::inline v0
