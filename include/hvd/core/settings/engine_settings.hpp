// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../engine_options.hpp"
#include "setting.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

template <>
struct settings_of<engine_options> {
    using o = engine_options;

    static constexpr setting table[] = {
        in_bytes(entry<&o::fusion_threshold>("engine.fusion_threshold", "HVD_FUSION_THRESHOLD",
                                             "HOROVOD_FUSION_THRESHOLD",
                                             "tensors that travel together; 0 fuses none"),
                 0, std::int64_t(1024 * tuning::GiB)),
        entry<&o::cycle_time>("engine.cycle_time", "HVD_CYCLE_TIME", "HOROVOD_CYCLE_TIME",
                              "time between two looks for tensors that all ranks have"),
        entry<&o::cache_capacity>("engine.cache_capacity", "HVD_CACHE_CAPACITY",
                                  "HOROVOD_CACHE_CAPACITY",
                                  "responses kept for repeated tensors; 0 keeps none"),
        entry<&o::prediction>("engine.prediction", "HVD_PREDICTION", "",
                              "tensors are expected in the order of the last step"),
        entry<&o::stall_warn>("engine.stall_warn", "HVD_STALL_WARN",
                              "HOROVOD_STALL_CHECK_TIME_SECONDS, HOROVOD_STALL_CHECK_DISABLE",
                              "a tensor that some ranks wait for is told; 0 never is"),
        entry<&o::stall_abort>("engine.stall_abort", "HVD_STALL_ABORT",
                               "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
                               "such a tensor ends the engine; 0 never does"),
        entry<&o::timeline>("engine.timeline", "HVD_TIMELINE", "HOROVOD_TIMELINE",
                            "the file of the timeline; empty writes none"),
        entry<&o::autotune>("engine.autotune", "HVD_AUTOTUNE", "HOROVOD_AUTOTUNE",
                            "searches for better thresholds while it runs"),
        entry<&o::autotune_log>("engine.autotune_log", "HVD_AUTOTUNE_LOG", "HOROVOD_AUTOTUNE_LOG",
                                "the file with what the search tried"),
        entry<&o::autotune_seed>("engine.autotune_seed", "HVD_AUTOTUNE_SEED", "",
                                 "of the search, so that it can be repeated"),
        entry<&o::cpus>("engine.cpus", "HVD_ENGINE_CPUS", "HOROVOD_THREAD_AFFINITY",
                        "the processors of the engine's threads, by local rank"),
    };
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
