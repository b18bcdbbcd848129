// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>

#include "../core/options.hpp"
#include "../core/tuning.hpp"
#include "../platform/cuda_api.hpp"

namespace hvd {
inline namespace v0 {

/// Options of a call on device tensors.
struct device_options {
    time_span deadline = {};  ///< for this call; 0 takes the communicator's
    /// the stream on which it runs; null: the communicator's own stream
    cudaStream_t stream = nullptr;
    /// Elements of each rank, alike on all ranks. For alltoall: the elements that this rank sends
    /// to each. If empty, all have equally many.
    std::span<const std::size_t> counts = {};
    std::span<const std::size_t> receive_counts =
        {};  ///< for an alltoall with `.counts`: the elements that come from each rank
};

/// Options of a reduction of device tensors.
struct device_reduce_options {
    double prescale = 1;      ///< each rank's tensor is multiplied by it before the reduction
    double postscale = 1;     ///< the result is multiplied by it
    time_span deadline = {};  ///< for this call; 0 takes the communicator's
    /// the stream on which it runs; null: the communicator's own stream
    cudaStream_t stream = nullptr;
    std::span<const std::size_t> counts =
        {};  ///< for reduce_scatter: each rank's elements; if empty, all have equally many
};

/// Options of a plan for device tensors. All ranks give the same.
struct device_plan_options {
    std::string_view name = {};  ///< for errors
    /// reductions: each rank's tensors are multiplied by it before the reduction
    double prescale = 1;
    double postscale = 1;     ///< reductions: the results are multiplied by it
    time_span deadline = {};  ///< for each run; 0 takes the communicator's
    /// Tensors of fewer bytes are packed together. Larger ones, and those of a `device_arena`, are
    /// not copied.
    std::size_t pack_below = detail::tuning::pack_below;
};

}  // namespace v0
}  // namespace hvd
