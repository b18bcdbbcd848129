// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The driver's own account of contexts, which the runtime does not give.

#include <cuda_runtime_api.h>

#include <stdexcept>

namespace device_test {

// The address of a function of the driver, as CUDA 12.0 has it, or null.
inline void* driver_function(const char* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    const cudaError_t code =
        cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t code = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
    return code == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

// True if this process has a context on the device, by whatever thread. The question makes none.
inline bool has_context(int device) {
    using state_of = int (*)(int device, unsigned* flags, int* is_active);
    static const auto state =
        reinterpret_cast<state_of>(driver_function("cuDevicePrimaryCtxGetState"));
    unsigned flags = 0;
    int is_active = 0;
    if (state == nullptr || state(device, &flags, &is_active) != 0)
        throw std::runtime_error("the driver does not tell of contexts");
    return is_active != 0;
}

}  // namespace device_test
