// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd {
inline namespace v0 {

/// How the ranks' gradients become one.
enum class gradient_op : std::uint8_t {
    average,  ///< the mean over ranks
    sum,
    adasum,  ///< each rank steps by itself; the changes of the parameters are combined by Adasum
};

/// What floating-point gradients are while they travel. Feature F6.
enum class gradient_codec : std::uint8_t { none, float16, bfloat16 };

/// How sparse gradients travel. Features B14, F7.
enum class sparse_policy : std::uint8_t {
    gather,     ///< each rank's rows, by allgather
    dense,      ///< the whole table, by allreduce (Horovod's `sparse_as_dense`)
    automatic,  ///< per call the one that moves fewer bytes, by the rows that all ranks have
};

/// How a distributed optimizer works; all ranks say the same, which is compared before the first
/// step. Features G5, G6, G7, F6.
struct optimizer_options {
    gradient_op op = gradient_op::average;
    std::size_t bucket_bytes = std::size_t(4) << 20;  ///< gradients that travel together
    /// Gradients, by index, that travel together whatever their size; the others fill buckets.
    std::vector<std::vector<std::size_t>> groups = {};
    int backward_passes_per_step = 1;      ///< passes that add to the gradients before they travel
    bool average_passes = false;           ///< divide by the passes; Horovod's Torch form does not
    double gradient_predivide_factor = 1;  ///< of an average, this part is divided before the sum
    gradient_codec codec = gradient_codec::none;
    /// What a codec rounds away is added to the parameter's next gradient, of sparse ones to the
    /// row's. Each rank keeps its own, and no checkpoint has it.
    bool error_feedback = false;
    bool scale_local = true;      ///< local gradients are divided by the number of ranks
    bool skip_nonfinite = false;  ///< a step with an infinity or NaN on any rank is left out on all
};

namespace detail {

constexpr const char* name_of(gradient_op op) {
    constexpr const char* names[] = {"average", "sum", "adasum"};
    return names[std::size_t(op)];
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
}  // namespace v0
}  // namespace hvd
