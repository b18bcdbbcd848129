// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "setting.hpp"

namespace hvd::inline v0::detail {

// The entry of a threshold, with the range that every communicator checks.
template <auto Member>
constexpr setting tuned(const char* key, const char* variable, const char* effect,
                        const char* replaces = "") {
    for (const tuning_range& r : tuning_ranges)
        if (r.member == Member)
            return {key,
                    variable,
                    replaces,
                    effect,
                    &member_of<&communicator_options::tuning, Member>,
                    setting_kind::bytes,
                    std::int64_t(r.least),
                    std::int64_t(r.most),
                    std::int64_t(r.multiple)};
    throw "a threshold without a range";  // found by the compiler
}

template <>
struct settings_of<communicator_options> {
    using o = communicator_options;
    using t = tuning_options;
    static constexpr std::int64_t most_bytes = std::int64_t(tuning::GiB);

    static constexpr setting table[] = {
        entry<&o::deadline>("deadline", "HVD_DEADLINE", "HOROVOD_GLOO_TIMEOUT_SECONDS",
                            "ends a call that waits for so long; 0 waits without a limit"),
        entry<&o::destructor_deadline>("destructor_deadline", "HVD_DESTRUCTOR_DEADLINE", "",
                                       "ends the wait of a destructor"),
        in_seconds(from(0,
                        entry<&o::waiting_notice>("waiting_notice", "HVD_WAITING_NOTICE",
                                                  "HOROVOD_STALL_CHECK_TIME_SECONDS",
                                                  "a waiting rank says for whom; 0 never does"),
                        "10s")),
        from(1,
             entry<&o::node_size>("node_size", "HVD_NODE_SIZE", "",
                                  "ranks that are taken as one node"),
             "the real nodes"),
        entry<&o::cross_by_library>("cross_by_library", "HVD_CROSS_BY_LIBRARY", "",
                                    "MPI_Allreduce reduces between nodes"),
        in_bytes(entry<&o::window_bytes>("window_bytes", "HVD_WINDOW_BYTES", "",
                                         "a window of shared memory; each rank has four"),
                 1, most_bytes),
        entry<&o::cpus>("cpus", "HVD_CPUS", "HOROVOD_THREAD_AFFINITY",
                        "the processors of the progress threads, by local rank"),
        tuned<&t::least_in_place>("tuning.least_in_place", "HVD_LEAST_IN_PLACE",
                                  "from here on, shared tensors stay where they lie"),
        tuned<&t::most_by_all>("tuning.most_by_all", "HVD_MOST_BY_ALL",
                               "up to here, all ranks together, each rank reduces a whole tensor"),
        tuned<&t::most_by_all_crowded>("tuning.most_by_all_crowded", "HVD_MOST_BY_ALL_CROWDED",
                                       "the same if ranks outnumber the processors"),
        tuned<&t::most_by_two>("tuning.most_by_two", "HVD_MOST_BY_TWO",
                               "up to here, each of two ranks reduces a whole tensor"),
        tuned<&t::most_by_two_16_bit>("tuning.most_by_two_16_bit", "HVD_MOST_BY_TWO_16_BIT",
                                      "the same for 16-bit elements"),
        tuned<&t::chunk_bytes>("tuning.chunk_bytes", "HVD_CHUNK_BYTES",
                               "a chunk of a reduction between nodes",
                               "HOROVOD_ADASUM_MPI_CHUNK_SIZE"),
        tuned<&t::exchange_chunk_bytes>("tuning.exchange_chunk_bytes", "HVD_EXCHANGE_CHUNK_BYTES",
                                        "a chunk between nodes where nothing is computed"),
        tuned<&t::most_carried>("tuning.most_carried", "HVD_MOST_CARRIED",
                                "data that leaves a node with the headers"),
        tuned<&t::least_carried>("tuning.least_carried", "HVD_LEAST_CARRIED",
                                 "data that goes with the headers to any number of nodes"),
        tuned<&t::most_in_slices>("tuning.most_in_slices", "HVD_MOST_IN_SLICES",
                                  "up to here, an allreduce crosses in one step"),
        tuned<&t::most_broadcast_whole>("tuning.most_broadcast_whole", "HVD_MOST_BROADCAST_WHOLE",
                                        "up to here, a broadcast crosses in one step"),
        tuned<&t::streaming_from>("tuning.streaming_from", "HVD_STREAMING_FROM",
                                  "from here on, results are stored past the caches"),
        tuned<&t::fetched_ahead>("tuning.fetched_ahead", "HVD_FETCHED_AHEAD",
                                 "fetched ahead of what is reduced"),
        tuned<&t::bucket_bytes>("tuning.bucket_bytes", "HVD_BUCKET_BYTES",
                                "gradients that travel together"),
    };
};

}  // namespace hvd::inline v0::detail
