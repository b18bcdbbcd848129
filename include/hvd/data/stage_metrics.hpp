// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../observe/prometheus_text.hpp"
#include "stage_pool.hpp"

namespace hvd::inline v0::detail {

// Adds the counts of stages with threads, each with the label `stage`.
inline void add_metrics(prometheus_group& all, const std::vector<data::stage_statistics>& stages) {
    for (const data::stage_statistics& s : stages)
        all.with("stage", s.stage)
            .counter("stage_samples", "Samples that the stage made.", s.made)
            .counter("stage_thread_seconds", "Time of all threads of the stage.", s.thread_seconds)
            .counter("stage_busy_seconds", "Time of these in which they made samples.", s.busy)
            .counter("stage_without_room_seconds",
                     "Time of these in which the stages behind took no samples.", s.without_room)
            .counter("stage_awaited_seconds", "Time in which its samples were waited for.",
                     s.awaited)
            .gauge("stage_ready", "Samples that were made and not taken.", s.ready)
            .gauge("stage_making", "Samples in the making.", s.making);
}

inline prometheus_group metrics_of(const std::vector<data::stage_statistics>& stages, int rank) {
    prometheus_group all("hvd_data_", "rank", rank);
    add_metrics(all, stages);
    return all;
}

}  // namespace hvd::inline v0::detail
