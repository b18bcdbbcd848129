// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The error feedback kernel rounds numbers to 16 bits and keeps what that loses. Its body is a
// function of a block and a thread, which a host compiler takes as well. The launch needs nvcc.

#include "elements.cuh"
#include "feedback.hpp"

namespace hvd::inline v0::detail {

template <class Half>
HVD_KERNEL_HOST_DEVICE void feed_back_block(const feedback_launch& l, unsigned block,
                                            unsigned thread) {
    const std::uint64_t first =
        (std::uint64_t(block) * feedback_threads + thread) * feedback_numbers;
    if (first >= l.count) return;
    vector16 loaded[4], stored[3];
    for (int i = 0; i < 2; ++i) {
        loaded[i] = load_vector(reinterpret_cast<const std::byte*>(l.from + first) + 16 * i);
        loaded[2 + i] =
            load_vector(reinterpret_cast<const std::byte*>(l.residual + first) + 16 * i);
    }
    float x[2 * feedback_numbers], lost[feedback_numbers];
    Half rounded[feedback_numbers];
    __builtin_memcpy(x, loaded, sizeof x);
    for (unsigned k = 0; k < feedback_numbers; ++k) {
        const float y = x[k] + x[feedback_numbers + k];
        narrow_to(rounded[k], y);
        lost[k] = y - widened(rounded[k]);
        if (!(lost[k] - lost[k] == 0)) lost[k] = 0;
    }
    __builtin_memcpy(stored, lost, sizeof lost);
    __builtin_memcpy(stored + 2, rounded, sizeof rounded);
    vector16* const next = reinterpret_cast<vector16*>(l.next + first);
    next[0] = stored[0];
    next[1] = stored[1];
    *reinterpret_cast<vector16*>(l.to + first * sizeof(Half)) = stored[2];
}

// Calls `f` with the 16-bit type of the launch.
template <class F>
cudaError_t with_feedback(const feedback_launch& l, F&& f) {
    switch (l.id) {
        case dtype::float16: return f.template operator()<float16_bits>();
        case dtype::bfloat16: return f.template operator()<bfloat16_bits>();
        default: return cudaErrorInvalidValue;
    }
}

#ifdef __CUDACC__

template <class Half>
__global__ void __launch_bounds__(feedback_threads, 4)
    feed_back(const __grid_constant__ feedback_launch launch) {
    feed_back_block<Half>(launch, blockIdx.x, threadIdx.x);
}

inline cudaError_t feed_back_on_device(const feedback_launch& launch, cudaStream_t stream) {
    return with_feedback(launch, [&]<class Half>() {
        return launch_kernel(feed_back<Half>, launch.blocks(), feedback_threads, launch, stream);
    });
}
inline cudaError_t load_feedback_kernels() {
    return load_all(feed_back<float16_bits>, feed_back<bfloat16_bits>);
}
static const registered feedback_registered(kernels.feedback, &feed_back_on_device);
static const registered feedback_loaded(kernels.load_feedback, &load_feedback_kernels);

#endif

}  // namespace hvd::inline v0::detail
