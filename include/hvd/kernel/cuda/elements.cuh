// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Elements and memory accesses that the kernels share.

#include <cstddef>
#include <cstdint>

#include "../../core/half.hpp"
#include "../host_device.hpp"
#include "registry.hpp"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace hvd::inline v0::detail {

// The 16 bytes that one load or store moves.
struct [[gnu::may_alias]] alignas(16) vector16 {
    unsigned long long low, high;
};

struct float16_bits {
    std::uint16_t bits;
};
struct bfloat16_bits {
    std::uint16_t bits;
};

HVD_KERNEL_HOST_DEVICE inline float widened(float16_bits x) {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(x.bits));
#else
    return float(float16::from_bits(x.bits));
#endif
}
HVD_KERNEL_HOST_DEVICE inline float widened(bfloat16_bits x) {
#ifdef __CUDA_ARCH__
    return __bfloat162float(__ushort_as_bfloat16(x.bits));
#else
    return float(bfloat16::from_bits(x.bits));
#endif
}
HVD_KERNEL_HOST_DEVICE inline float widened(float x) { return x; }
HVD_KERNEL_HOST_DEVICE inline double widened(double x) { return x; }

// A NaN gets the same bits as on the host.
HVD_KERNEL_HOST_DEVICE inline void narrow_to(float16_bits& to, float x) {
#ifdef __CUDA_ARCH__
    to.bits = x == x ? __half_as_ushort(__float2half_rn(x)) : 0x7e00;
#else
    to.bits = float16(x).bits();
#endif
}
HVD_KERNEL_HOST_DEVICE inline void narrow_to(bfloat16_bits& to, float x) {
#ifdef __CUDA_ARCH__
    to.bits = x == x ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : 0x7fc0;
#else
    to.bits = bfloat16(x).bits();
#endif
}
HVD_KERNEL_HOST_DEVICE inline void narrow_to(float& to, float x) { to = x; }
HVD_KERNEL_HOST_DEVICE inline void narrow_to(double& to, double x) { to = x; }

// Loads data that is read once. The hint keeps it out of the cache, which is left to the output
// that the collective reads next.
HVD_KERNEL_HOST_DEVICE inline vector16 load_vector(const std::byte* from) {
#ifdef __CUDA_ARCH__
    const ulonglong2 x = __ldcs(reinterpret_cast<const ulonglong2*>(from));
    return {x.x, x.y};
#else
    return *reinterpret_cast<const vector16*>(from);
#endif
}

#ifdef __CUDACC__

// A static object of this type registers a launch, or what loads its kernels, before main.
struct registered {
    template <class F>
    registered(F*& place, F* function) {
        place = function;
    }
};

// Launches a kernel, and returns the error of this launch: an earlier one is the caller's.
template <class Launch>
cudaError_t launch_kernel(void (*kernel)(Launch), unsigned blocks, unsigned threads,
                          const Launch& launch, cudaStream_t stream) {
    void* arguments[] = {const_cast<Launch*>(&launch)};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(threads),
                            arguments, 0, stream);
}

// CUDA loads a kernel when it is asked for its attributes.
template <class... Kernels>
cudaError_t load_all(Kernels*... kernels) {
    cudaError_t code = cudaSuccess;
    cudaFuncAttributes attributes;
    static_cast<void>(
        ((code = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernels)),
          code == cudaSuccess) &&
         ...));
    return code;
}

#endif

}  // namespace hvd::inline v0::detail

#ifdef __CUDACC__
// The linker looks for it in static libraries.
extern "C" {
[[gnu::used]] inline void hvd_kernels() {}
}
#endif
