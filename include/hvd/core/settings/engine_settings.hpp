// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../engine_options.hpp"
#include "setting.hpp"

namespace hvd::inline v0::detail {

template <>
struct settings_of<engine_options> {
    using o = engine_options;

    static constexpr setting table[] = {
        in_bytes(entry<&o::fusion_threshold>(
                     "engine.fusion_threshold", "HVD_ENGINE_FUSION_THRESHOLD",
                     "HOROVOD_FUSION_THRESHOLD", "tensors that travel together; 0 fuses none"),
                 0, std::int64_t(most_fusion_threshold)),
        entry<&o::cycle_time>("engine.cycle_time", "HVD_ENGINE_CYCLE_TIME", "HOROVOD_CYCLE_TIME",
                              "time that rank 0 waits for more tensors"),
        needed("tensors that come at once: 1.1 times the [speed](#figures)",
               entry<&o::largest_first>("engine.largest_first", "HVD_ENGINE_LARGEST_FIRST", "",
                                        "of tensors that are ready the largest travels first")),
        entry<&o::cache_capacity>("engine.cache_capacity", "HVD_ENGINE_CACHE_CAPACITY",
                                  "HOROVOD_CACHE_CAPACITY",
                                  "tensors known by a short number; 0 knows none"),
        needed("programs whose steps never repeat; [figures](#figures)",
               entry<&o::prediction>("engine.prediction", "HVD_ENGINE_PREDICTION", "",
                                     "steps that repeat run without negotiation")),
        unless_given("1min", entry<&o::stall_warn>(
                                 "engine.stall_warn", "HVD_ENGINE_STALL_WARN",
                                 "HOROVOD_STALL_CHECK_TIME_SECONDS, HOROVOD_STALL_CHECK_DISABLE",
                                 "a tensor that some ranks have waited for so long is told")),
        unless_given("forever",
                     entry<&o::stall_abort>("engine.stall_abort", "HVD_ENGINE_STALL_ABORT",
                                            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
                                            "such a tensor ends the engine")),
    };
};

}  // namespace hvd::inline v0::detail
