// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd::inline v0 {

// g++ 12 takes the enumerators for declarations that shadow the operations of these names.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"

/// The way in which the ranks' gradients become one.
enum class gradient_op : std::uint8_t {
    average,  ///< the mean over ranks
    sum,
    adasum,  ///< each rank steps by itself; Adasum combines the changes of the parameters
};

#pragma GCC diagnostic pop

/// The element type of floating-point gradients while they travel. Horovod: `Compression.fp16`.
enum class gradient_codec : std::uint8_t { none, float16, bfloat16 };

/// The way in which sparse gradients travel. Horovod: `sparse_as_dense`.
enum class sparse_policy : std::uint8_t {
    gather,  ///< sends each rank's rows by allgather
    dense,   ///< sends the whole table by allreduce (Horovod's `sparse_as_dense`)
    /// chooses for each call the one that moves fewer bytes, from the rows of all ranks
    automatic,
};

/// The order in which buckets of gradients start. Gradients whose order is not known go from the
/// last registered to the first.
enum class bucket_order : std::uint8_t {
    /// as the gradients were reported: learnt from the first step, and looked at again before steps
    /// 10, 100, 1000, 2000, 3000, … Each time costs the ranks two small messages.
    adaptive,
    learnt_once,  ///< learnt from the first step with reports, for models that never change
    reverse,      ///< from the last registered to the first
};

/// Options of a distributed optimizer. All ranks give the same, which is compared before the first
/// step. Horovod: `backward_passes_per_step`, `gradient_predivide_factor`, `groups`, `compression`.
struct optimizer_options {
    gradient_op op = gradient_op::average;
    /// size of a bucket: gradients that travel together. 0 takes the `.tuning.bucket_bytes` that
    /// the communicator has when the optimizer is made; 1 sends each gradient by itself.
    std::size_t bucket_bytes = 0;
    /// Gradients, by index, that travel together whatever their size. The others fill buckets.
    std::vector<std::vector<std::size_t>> groups = {};
    bucket_order order = bucket_order::adaptive;
    /// Gradients, by index, that may stay unreported. Their buckets are the last, so that they stop
    /// no others. See `unreported()`.
    std::vector<std::size_t> may_be_unreported = {};
    /// number of passes that add to the gradients before they travel
    int backward_passes_per_step = 1;
    /// divides by the number of passes; Horovod's Torch form does not. A step of which a rank has
    /// reported fewer passes is refused.
    bool average_passes = false;
    /// an average is divided by this factor before the sum, and by the rest after it
    double gradient_predivide_factor = 1;
    gradient_codec codec = gradient_codec::none;
    /// Rounding errors of a codec are added to the parameter's next gradient, or to the row's next
    /// gradient if it is sparse. The sum travels in float and its result in the codec's type, so
    /// that one rank knows the error of each element. A step that is not applied leaves the errors
    /// as they were. Checkpoints have them.
    bool error_feedback = false;
    bool scale_local = true;  ///< local gradients are divided by the number of ranks
    /// a step with an infinity or NaN on any rank is left out on all ranks
    bool skip_nonfinite = false;
    /// On the device each rank steps its slice of every shared parameter and keeps the optimizer's
    /// state of it alone: the gradients are reduced by reduce_scatter, and the new values travel by
    /// allgather.
    bool shard_state = false;
};

namespace detail {

constexpr const char* name_of(gradient_op op) {
    constexpr const char* names[] = {"average", "sum", "adasum"};
    return names[std::size_t(op)];
}

constexpr const char* name_of(bucket_order order) {
    constexpr const char* names[] = {"adaptive", "learnt_once", "reverse"};
    return names[std::size_t(order)];
}

constexpr const char* name_of(gradient_codec codec) {
    constexpr const char* names[] = {"none", "float16", "bfloat16"};
    return names[std::size_t(codec)];
}

constexpr const char* name_of(sparse_policy policy) {
    constexpr const char* names[] = {"gather", "dense", "automatic"};
    return names[std::size_t(policy)];
}

}  // namespace detail
}  // namespace hvd::inline v0
