// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>

#include "../core/options.hpp"
#include "../core/tuning.hpp"
#include "../platform/cuda_api.hpp"

namespace hvd {
inline namespace v0 {

/// What a call on device tensors may be told beyond its arguments.
struct device_options {
    time_span deadline = {};        ///< for this call; 0: the communicator's
    cudaStream_t stream = nullptr;  ///< where it runs; null: the communicator's own stream
    /// Elements of each rank, alike on all ranks; of alltoall: what this rank sends to each. Empty:
    /// equal ones.
    std::span<const std::size_t> counts = {};
    std::span<const std::size_t> receive_counts =
        {};  ///< of an alltoall with `.counts`: what comes from each rank
};

/// What a reduction of device tensors may be told beyond its arguments.
struct device_reduce_options {
    double prescale = 1;            ///< each rank's tensor is multiplied by it before the reduction
    double postscale = 1;           ///< the result is multiplied by it
    time_span deadline = {};        ///< for this call; 0: the communicator's
    cudaStream_t stream = nullptr;  ///< where it runs; null: the communicator's own stream
    std::span<const std::size_t> counts =
        {};  ///< of reduce_scatter: each rank's elements; empty: equal ones
};

/// What a plan for device tensors may be told beyond its arguments; all ranks say the same.
struct device_plan_options {
    std::string_view name = {};  ///< for errors
    double prescale = 1;         ///< of reductions: each rank's tensors are multiplied by it before
    double postscale = 1;        ///< of reductions: the results are multiplied by it
    time_span deadline = {};     ///< for each run; 0: the communicator's
    /// Tensors of fewer bytes are packed together; larger ones, and those of a `device_arena`, go
    /// from where they are.
    std::size_t pack_below = detail::tuning::pack_below;
};

}  // namespace v0
}  // namespace hvd
