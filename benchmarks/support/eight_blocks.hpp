// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace bench {

/// A copy from one tensor to another, both aligned to 16 bytes.
struct whole_tensor {
    const void* from;
    void* to;
    std::size_t bytes;
};

/// Horovod's scheme: eight blocks of 1024 threads for each tensor. `tensors` is device memory.
cudaError_t copy_by_eight_blocks(const whole_tensor* tensors, unsigned count, cudaStream_t stream);

}  // namespace bench
