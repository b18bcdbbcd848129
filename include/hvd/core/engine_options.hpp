// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

#include "options.hpp"

namespace hvd {
inline namespace v0 {

/// Options of the engine, which matches tensors by their names. All ranks give the same, but for
/// `timeline`, `autotune_log` and `cpus`. `docs/tuning.md` has the range and the variable of each.
/// Features D1, D3, D4, E1, E3, E6, A13.
struct engine_options {
    /// bytes of tensors that travel together; 0 sends every tensor by itself
    std::size_t fusion_threshold = std::size_t(128) << 20;
    /// time between two looks for tensors that all ranks have; 0 looks without a pause
    time_span cycle_time = time_span::of_nanoseconds(1'000'000);
    std::size_t cache_capacity = 1024;  ///< responses that are kept for repeated tensors; 0: none
    /// tensors are expected in the order of the last step, so that ranks need not ask each other
    bool prediction = true;
    /// a tensor that some ranks have waited for so long is told to the sink of `set_error_sink`;
    /// 0 never is
    time_span stall_warn = time_span::of_nanoseconds(60'000'000'000);
    /// a tensor that some ranks have waited for so long ends the engine with an error; 0 never does
    time_span stall_abort = time_span::of_nanoseconds(0);
    std::string timeline = {};        ///< the file of the timeline; empty writes none
    bool autotune = false;            ///< searches for better thresholds while it runs
    std::string autotune_log = {};    ///< the file with what the search tried; empty: none
    std::uint64_t autotune_seed = 1;  ///< of the search, so that it can be repeated
    /// the processor of the engine's thread, one for each rank of a node; empty leaves the choice
    /// to the system
    std::vector<int> cpus = {};
};

}  // namespace v0
}  // namespace hvd
