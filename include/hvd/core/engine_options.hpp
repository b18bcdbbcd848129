// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "options.hpp"

namespace hvd::inline v0 {

/// How the mean is taken while ranks have joined, which give nothing more. Horovod: `join`.
enum class join_mean : std::uint8_t {
    of_contributors,  ///< the sum divided by the number of ranks that gave a tensor
    of_all,           ///< the sum divided by the number of all ranks, as Horovod does
};

/// Options of an engine. All ranks give the same; they compare them when they make it.
/// `docs/reference/settings.md` has the range and the variable of each. Horovod:
/// `HOROVOD_CYCLE_TIME`, `HOROVOD_FUSION_THRESHOLD`, `HOROVOD_CACHE_CAPACITY`.
struct engine_options {
    /// bytes of tensors that travel together; 0 sends every tensor by itself. The default is
    /// Horovod's. With less, a predicted step begins to travel while it is still computed
    std::size_t fusion_threshold = 128 * detail::tuning::MiB;
    /// time that rank 0 waits for more tensors before it lets those run that are ready. It plays no
    /// part once a step is predicted
    time_span cycle_time = time_span::of_nanoseconds(0);
    /// of tensors that are ready and have one priority the largest goes first, so that fewer units
    /// hold them all. Otherwise the one that was ready first does: it travels while others are
    /// still computed
    bool largest_first = false;
    std::size_t cache_capacity = 1024;  ///< tensors that are known by a short number; 0: none
    /// steps that repeat are expected to come again, so that ranks need not ask each other
    bool prediction = true;
    /// a tensor that a rank has waited for so long is told to the sink of `set_message_sink`, with
    /// the ranks that have not submitted it, and so is a unit that has waited so long inside, with
    /// the ranks that have not arrived there. Without one it is a minute; `hvd::forever` never
    /// tells
    time_limit stall_warn = {};
    /// a tensor that a rank has waited for so long, or a unit that has run for so long, ends the
    /// engine with an error that names the missing ranks; without one nothing does
    time_limit stall_abort = {};
    join_mean mean = join_mean::of_contributors;  ///< an average while ranks have joined
};

/// The thresholds and choices of an engine that `engine::retune` changes between steps.
struct engine_tuning {
    /// as `engine_options::fusion_threshold`
    std::size_t fusion_threshold = engine_options{}.fusion_threshold;
    time_span cycle_time = engine_options{}.cycle_time;   ///< as `engine_options::cycle_time`
    bool largest_first = engine_options{}.largest_first;  ///< as `engine_options::largest_first`
    bool prediction = engine_options{}.prediction;        ///< as `engine_options::prediction`
    tuning_options tuning = {};                           ///< of the engine's communicator

    friend bool operator==(const engine_tuning& a, const engine_tuning& b) {
        return a.fusion_threshold == b.fusion_threshold &&
               a.cycle_time.nanoseconds == b.cycle_time.nanoseconds &&
               a.largest_first == b.largest_first && a.prediction == b.prediction &&
               a.tuning == b.tuning;
    }
};

namespace detail {

// 0 is never.
inline std::int64_t stall_warn_of(const engine_options& o) {
    return o.stall_warn.or_else(time_span::of_nanoseconds(tuning::stall_warn)).time().nanoseconds;
}

inline constexpr std::size_t most_fusion_threshold = tuning::TiB;

// @throws hvd::usage_error for a value outside its range.
[[gnu::cold]] inline void check_engine_tuning(const engine_tuning& t, int rank) {
    if (t.fusion_threshold > most_fusion_threshold)
        throw usage_error(rank, text("hvd: .fusion_threshold is ", t.fusion_threshold,
                                     "; it takes ", range_text(0, most_fusion_threshold, 1)));
    if (t.cycle_time.nanoseconds < 0)
        throw usage_error(rank, text("hvd: .cycle_time is ", t.cycle_time.nanoseconds,
                                     " ns, and can't be negative"));
    check_tuning(t.tuning, rank);
}

// Says name and value of each threshold, for an agreement of ranks.
template <class Say>
[[gnu::cold]] void say_engine_tuning(const engine_tuning& t, Say&& say) {
    say(std::string_view(".fusion_threshold"), text(t.fusion_threshold));
    say(std::string_view(".cycle_time"), text(t.cycle_time.nanoseconds, " ns"));
    say(std::string_view(".largest_first"), text(t.largest_first ? "true" : "false"));
    say(std::string_view(".prediction"), text(t.prediction ? "true" : "false"));
    say_tuning(t.tuning, say);
}

}  // namespace detail
}  // namespace hvd::inline v0
