// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include "../../core/dtype.hpp"
#include "registry.hpp"

namespace hvd::inline v0::detail {

// A thread rounds numbers that fill 16 bytes when they have 16 bits.
constexpr unsigned feedback_threads = 256;
constexpr unsigned feedback_numbers = 8;

// The arguments of one launch, which computes y = from[i] + residual[i] and to[i] = y, rounded to
// 16 bits. The next residual is what that has lost, or 0 where it is not finite. All addresses are
// multiples of 16 bytes, and there are whole vectors: `count` is a multiple of feedback_numbers.
struct feedback_launch {
    const float *from, *residual;
    std::byte* to;
    float* next;
    std::uint64_t count;
    dtype id;  // float16 or bfloat16

    unsigned blocks() const {
        constexpr unsigned each = feedback_threads * feedback_numbers;
        return unsigned((count + each - 1) / each);
    }
};

inline void launch_feedback(const feedback_launch& launch, cudaStream_t stream, int rank) {
    if (launch.count > 0)
        check_cuda(kernels.feedback(launch, stream), "launch of hvd's error feedback kernel", rank);
}

}  // namespace hvd::inline v0::detail
