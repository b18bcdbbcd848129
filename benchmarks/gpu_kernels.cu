// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// hvd's kernels, and the kernel to compare with: our own implementation of Horovod's batched copy.
#include <hvd/kernels.cuh>

#include "support/eight_blocks.hpp"

namespace {

constexpr unsigned blocks_per_tensor = 8, block_threads = 1024;

// Uses eight blocks for each tensor, whatever its size. Each thread has one load under way.
__global__ void copy_eight_blocks(const bench::whole_tensor* tensors) {
    const bench::whole_tensor t = tensors[blockIdx.x / blocks_per_tensor];
    const std::size_t chunks = t.bytes / sizeof(ulonglong2);
    const std::size_t first =
        std::size_t(blockIdx.x % blocks_per_tensor) * block_threads + threadIdx.x;
    const auto* const from = static_cast<const ulonglong2*>(t.from);
    auto* const to = static_cast<ulonglong2*>(t.to);
#pragma unroll 1
    for (std::size_t i = first; i < chunks; i += blocks_per_tensor * block_threads) to[i] = from[i];
    const std::size_t done = chunks * sizeof(ulonglong2);
    if (first < t.bytes - done)
        static_cast<char*>(t.to)[done + first] = static_cast<const char*>(t.from)[done + first];
}

}  // namespace

cudaError_t bench::copy_by_eight_blocks(const whole_tensor* tensors, unsigned count,
                                        cudaStream_t stream) {
    copy_eight_blocks<<<count * blocks_per_tensor, block_threads, 0, stream>>>(tensors);
    return cudaGetLastError();
}
