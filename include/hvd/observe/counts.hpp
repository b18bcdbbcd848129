// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "engine_statistics.hpp"
#include "prometheus_text.hpp"
#include "statistics.hpp"

namespace hvd::inline v0::detail {

// Tells each number of an engine: name, the sentence that explains it, kind, and value.
template <class F>
void each_count(const engine_statistics& s, F tell) {
    using enum count_kind;
    tell("tensors_submitted", "Tensors that this rank has submitted.", counter, s.submitted);
    tell("tensors_completed", "Tensors that are complete without an error.", counter, s.completed);
    tell("tensors_failed", "Tensors that ended with an error.", counter, s.failed);
    tell("tensors_in_flight", "Tensors that are not complete.", gauge, s.in_flight());
    tell("bytes", "Bytes of the completed tensors of this rank.", counter, s.bytes);
    tell("units", "Groups of tensors that have travelled together.", counter, s.units);
    tell("unit_tensors", "Tensors of this rank in all units.", counter, s.unit_tensors);
    tell("tensors_per_unit", "Mean number of tensors in a unit.", gauge, s.tensors_per_unit());
    tell("predicted_units", "Units that ran without a negotiation.", counter, s.predicted_units);
    tell("predicted_steps", "Steps whose units were all predicted.", counter, s.predicted_steps);
    tell("declined_predictions", "Predictions that some rank has declined.", counter, s.declined);
    tell("negotiated_tensors", "Tensors that ranks have asked each other for.", counter,
         s.negotiated());
    tell("cache_hits", "Tensors that were negotiated by their number.", counter, s.cache_hits);
    tell("cache_misses", "Tensors that were negotiated by their name.", counter, s.cache_misses);
    tell("messages_sent", "Messages of the negotiation to neighbours.", counter, s.messages_sent);
    tell("messages_received", "Messages of the negotiation from neighbours.", counter,
         s.messages_received);
    tell("stalls_warned", "Lines that told of ranks that did not come.", counter, s.stalls_warned);
    tell("stalls_aborted", "Times that this rank has ended the engine for a stall.", counter,
         s.stalls_aborted);
    tell("waiting_seconds", "Time from submission to the begin of the unit, of all tensors.",
         counter, s.waiting_seconds);
    tell("longest_wait_seconds", "Longest time from submission to the begin of the unit.", gauge,
         s.longest_wait_seconds);
    tell("running_seconds", "Time of all units, with the wait for later ranks.", counter,
         s.running_seconds);
    tell("longest_run_seconds", "Longest time of a unit.", gauge, s.longest_run_seconds);
}

// The same for the calls of one collective and path.
template <class F>
void each_count(const call_statistics& s, F tell) {
    using enum count_kind;
    tell("calls", "Calls that succeeded.", counter, s.calls);
    tell("failed", "Calls that failed.", counter, s.failed);
    tell("bytes", "Bytes that this rank contributed.", counter, s.bytes);
    tell("size_bytes", "Sizes of the calls as nccl-tests counts them.", counter, s.total_bytes);
    tell("seconds", "Time of the calls, with the wait for later ranks.", counter, s.seconds());
    tell("longest_seconds", "Time of the longest call.", gauge, s.longest_seconds());
    tell("algbw_bytes_per_second", "Sizes of the calls over their time.", gauge, s.algbw());
    tell("busbw_bytes_per_second", "The same times the factor of the collective.", gauge,
         s.busbw());
}

// The same for the calls in which one rank came last.
template <class F>
void each_count(const rank_lateness& s, F tell) {
    using enum count_kind;
    tell("calls", "Calls in which the rank came last.", counter, s.calls);
    tell("seconds", "Time that another rank has waited for it, the mean of all others.", counter,
         s.seconds());
}

}  // namespace hvd::inline v0::detail
