// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "error.hpp"
#include "tuning.hpp"

namespace hvd::inline v0 {
namespace detail {

// Thresholds between two ways of a call, in bytes, and a number of ranks. Nobody needs to set them:
// the defaults are in tuning.hpp, with their measurements. Tests set small ones, and experiments
// others, by `tuning_options::unstable` and HVD_TUNING.
struct unstable_thresholds {
    // tensors of so many bytes that all ranks can reach stay where they lie
    std::size_t least_in_place = tuning::least_in_place;
    // private tensors of so many bytes are read by the system, where it lets processes do so
    std::size_t least_private = tuning::least_private;
    // all ranks together, up to which more than two ranks each reduce a whole tensor
    std::size_t most_by_all = tuning::most_by_all;
    // the same if ranks outnumber the processors
    std::size_t most_by_all_crowded = tuning::most_by_all_crowded;
    // up to which each of two ranks reduces a whole tensor, if it is not 16-bit floating-point
    std::size_t most_by_two = tuning::most_by_two;
    // up to which each of two ranks reduces a whole 16-bit floating-point tensor
    std::size_t most_by_two_16_bit = tuning::most_by_two_16_bit;
    // a chunk between nodes where nothing is computed
    std::size_t exchange_chunk_bytes = tuning::chunk_of_exchange;
    // data that leaves a node with the headers of a call, all messages together
    std::size_t most_carried = tuning::most_carried;
    // data that goes with the headers to any number of nodes
    std::size_t least_carried = tuning::least_carried;
    // up to which an allreduce crosses between nodes in one step
    std::size_t most_in_slices = tuning::most_in_slices;
    // up to which a broadcast goes straight to one rank of each node
    std::size_t most_broadcast_whole = tuning::most_broadcast_whole;
    // from which results that go to several places are stored past the caches
    std::size_t streaming_from = tuning::streaming_from;
    // between what is reduced and what is fetched into the cache meanwhile
    std::size_t fetched_ahead = tuning::fetched_ahead;
    // ranks that a rank negotiates with, beside the one above it, in engines that are made later
    std::size_t fanout = tuning::engine_fanout;

    friend bool operator==(const unstable_thresholds&, const unstable_thresholds&) = default;
};

}  // namespace detail

/// Thresholds of a communicator, in bytes. They decide how data moves, and never the result. All
/// ranks give the same, which is compared. `retune` changes them between calls. The defaults are in
/// `hvd/core/tuning.hpp`, with their measurements; `docs/reference/settings.md` has the ranges.
struct tuning_options {
    /// a chunk of a reduction between nodes, and of an allgather
    std::size_t chunk_bytes = detail::tuning::chunk_bytes;
    /// a bucket of gradients, for optimizers that are made later and whose options leave it open
    std::size_t bucket_bytes = detail::tuning::bucket_bytes;
    /// thresholds for tests and experiments, which may change with any version
    detail::unstable_thresholds unstable = {};

    friend bool operator==(const tuning_options&, const tuning_options&) = default;
};

namespace detail {

// A threshold with its range, and the multiple that it must be.
struct tuning_range {
    const char* name;
    std::size_t& (*member)(tuning_options&);
    std::size_t least, most, multiple;

    std::size_t of(tuning_options options) const { return member(options); }
};

template <auto Member>
std::size_t& threshold_of(tuning_options& options) {
    if constexpr (requires { options.*Member; }) return options.*Member;
    else return options.unstable.*Member;
}

inline constexpr tuning_range tuning_ranges[] = {
    {"chunk_bytes", threshold_of<&tuning_options::chunk_bytes>, tuning::cache_line, tuning::GiB,
     tuning::cache_line},
    {"bucket_bytes", threshold_of<&tuning_options::bucket_bytes>, 1, tuning::TiB, 1},
    {"unstable.least_in_place", threshold_of<&unstable_thresholds::least_in_place>, 1, tuning::GiB,
     1},
    {"unstable.least_private", threshold_of<&unstable_thresholds::least_private>, 1, tuning::TiB,
     1},
    {"unstable.most_by_all", threshold_of<&unstable_thresholds::most_by_all>, 0, tuning::GiB, 1},
    {"unstable.most_by_all_crowded", threshold_of<&unstable_thresholds::most_by_all_crowded>, 0,
     tuning::GiB, 1},
    {"unstable.most_by_two", threshold_of<&unstable_thresholds::most_by_two>, 0, tuning::TiB, 1},
    {"unstable.most_by_two_16_bit", threshold_of<&unstable_thresholds::most_by_two_16_bit>, 0,
     tuning::GiB, 1},
    {"unstable.exchange_chunk_bytes", threshold_of<&unstable_thresholds::exchange_chunk_bytes>,
     tuning::cache_line, tuning::GiB, tuning::cache_line},
    {"unstable.most_carried", threshold_of<&unstable_thresholds::most_carried>, 0, tuning::MiB, 1},
    {"unstable.least_carried", threshold_of<&unstable_thresholds::least_carried>, 0,
     64 * tuning::KiB, 1},
    {"unstable.most_in_slices", threshold_of<&unstable_thresholds::most_in_slices>, 0, tuning::GiB,
     1},
    {"unstable.most_broadcast_whole", threshold_of<&unstable_thresholds::most_broadcast_whole>, 0,
     tuning::GiB, 1},
    {"unstable.streaming_from", threshold_of<&unstable_thresholds::streaming_from>, 0, tuning::GiB,
     1},
    {"unstable.fetched_ahead", threshold_of<&unstable_thresholds::fetched_ahead>, 0, tuning::MiB,
     1},
    {"unstable.fanout", threshold_of<&unstable_thresholds::fanout>, 1, 1024, 1},
};
static_assert(sizeof tuning_ranges / sizeof *tuning_ranges * sizeof(std::size_t) ==
              sizeof(tuning_options));

// Says a range in words.
[[gnu::cold]] inline message range_text(std::uint64_t least, std::uint64_t most,
                                        std::uint64_t multiple) {
    return multiple > 1 ? text("a multiple of ", multiple, " from ", least, " to ", most)
                        : text("a number from ", least, " to ", most);
}

// @throws hvd::usage_error for a value outside its range.
[[gnu::cold]] inline void check_tuning(const tuning_options& options, int rank) {
    for (const tuning_range& r : tuning_ranges) {
        const std::size_t value = r.of(options);
        if (value < r.least || value > r.most || value % r.multiple != 0)
            throw usage_error(rank, text("hvd: .tuning.", r.name, " is ", value, "; it takes ",
                                         range_text(r.least, r.most, r.multiple)));
    }
}

// Says name and value of each threshold, for an agreement of ranks.
template <class Say>
[[gnu::cold]] void say_tuning(const tuning_options& options, Say&& say) {
    for (const tuning_range& r : tuning_ranges)
        say(std::string_view(text(".tuning.", r.name)), text(r.of(options)));
}

}  // namespace detail
}  // namespace hvd::inline v0
