// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string_view>

#include "../../platform/cuda_api.hpp"

namespace hvd::inline v0::detail {

struct tile_launch;
struct update_launch;
struct feedback_launch;

// The launches of hvd's kernels. The unit that nvcc compiles with kernels.cuh registers them before
// main. Without such a unit they stay null, and whoever needs a kernel refuses the call. The linker
// takes that unit out of a static library only if it looks for one of its symbols: `hvd_kernels`.
struct kernel_launches {
    cudaError_t (*tiles)(const tile_launch&, cudaStream_t) = nullptr;
    cudaError_t (*update)(const update_launch&, cudaStream_t) = nullptr;
    cudaError_t (*feedback)(const feedback_launch&, cudaStream_t) = nullptr;
    // These load the kernels of each.
    cudaError_t (*load_tiles)() = nullptr;
    cudaError_t (*load_update)() = nullptr;
    cudaError_t (*load_feedback)() = nullptr;
};
inline constinit kernel_launches kernels;

// Loads all kernels on the current device. A first launch would do it, and might wait for the work
// of all streams then: for a collective, whose peers wait for what comes behind this launch.
inline void load_kernels(int rank) {
    for (const auto load : {kernels.load_tiles, kernels.load_update, kernels.load_feedback})
        if (load != nullptr) check_cuda(load(), "cudaFuncGetAttributes of hvd's kernels", rank);
}

// Returns the text for a program that has not the kernels that `what` needs.
[[gnu::cold]] inline message no_kernels(std::string_view what, int rank) {
    return text("hvd: ", what, " on rank ", rank,
                " needs hvd's kernels, which this program lacks: compile a .cu file that includes "
                "hvd/kernel/cuda/kernels.cuh into it; if that file is in a static library, link "
                "with -Wl,-u,hvd_kernels");
}

}  // namespace hvd::inline v0::detail
