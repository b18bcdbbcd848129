// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <exception>
#include <functional>

#include "../../device/options.hpp"

namespace hvd::inline v0 {

/// Options of a device tensor that is submitted to an engine.
struct named_device_options {
    double prescale = 1;      ///< each rank's tensor is multiplied by it before a reduction
    double postscale = 1;     ///< the result of a reduction is multiplied by it
    int priority = 0;         ///< of the tensors that are ready, the highest goes first
    time_limit timeout = {};  ///< from the submission; then the engine is given up
    /// The tensor is read after what this stream has been given before the submission. If none is
    /// given, it is read after what the calling thread has given the default streams.
    device_stream stream = {};
    /// called once the work of the tensor is done, or has failed, with its exception or null, by a
    /// thread of the engine. It may submit tensors. It must not wait for one, and must not throw
    std::function<void(std::exception_ptr)> then = {};
};

}  // namespace hvd::inline v0
