// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <string_view>

#include "../core/options.hpp"
#include "../core/tuning.hpp"
#include "../platform/cuda_api.hpp"

namespace hvd::inline v0 {

/// A stream that a call or a request is given, or none.
///
/// Every stream of CUDA converts to it. 0 is the legacy default stream, as for NCCL.
/// @snippet tests/device/snippets.cpp device_streams
class device_stream {
public:
    /// No stream is given.
    device_stream() = default;
    /// The stream of a user, `cudaStreamPerThread`, `cudaStreamLegacy` or 0.
    device_stream(cudaStream_t stream) noexcept
        : stream_(stream == nullptr ? cudaStreamLegacy : stream) {}

    /// True if a stream is given.
    bool given() const noexcept { return stream_ != nullptr; }
    /// The stream, `cudaStreamLegacy` for 0; null if none is given.
    cudaStream_t get() const noexcept { return stream_; }

private:
    cudaStream_t stream_ = nullptr;
};

/// Options of a call on device tensors.
struct device_options {
    std::string_view name = {};  ///< for errors; need not be unique
    time_limit timeout = {};     ///< for this call; the communicator's if it is not given
    /// The call is ordered after what this stream has been given, and before what it is given
    /// later. If none is given, the call is ordered after what the calling thread has given the
    /// default streams, and runs on the communicator's own stream.
    device_stream stream = {};
    /// Elements of each rank, alike on all ranks. For alltoall: the elements that this rank sends
    /// to each. If empty, all have equally many.
    std::span<const std::size_t> counts = {};
    std::span<const std::size_t> receive_counts =
        {};  ///< for an alltoall with `.counts`: the elements that come from each rank
};

/// Options of a reduction of device tensors.
struct device_reduce_options {
    std::string_view name = {};  ///< for errors; need not be unique
    double prescale = 1;         ///< each rank's tensor is multiplied by it before the reduction
    double postscale = 1;        ///< the result is multiplied by it
    time_limit timeout = {};     ///< for this call; the communicator's if it is not given
    /// The call is ordered after what this stream has been given, and before what it is given
    /// later. If none is given, the call is ordered after what the calling thread has given the
    /// default streams, and runs on the communicator's own stream.
    device_stream stream = {};
    std::span<const std::size_t> counts =
        {};  ///< for reduce_scatter: each rank's elements; if empty, all have equally many
};

/// Options of a plan for device tensors. All ranks give the same.
struct device_plan_options {
    std::string_view name = {};  ///< for errors
    /// reductions: each rank's tensors are multiplied by it before the reduction
    double prescale = 1;
    double postscale = 1;     ///< reductions: the results are multiplied by it
    time_limit timeout = {};  ///< for each run; the communicator's if it is not given
    /// Tensors of fewer bytes are packed together. Larger ones, and those of a `device_arena`, are
    /// not copied.
    std::size_t pack_below = detail::tuning::pack_below;
};

}  // namespace hvd::inline v0
