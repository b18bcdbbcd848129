// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cuda.h>

#include <chrono>
#include <cstring>

#include "streams.hpp"

// The calls of the driver by which streams write and wait for words. A program gets them from the
// runtime.

namespace {

// Streams reach memory of the device and registered host memory.
std::uint32_t* word_at(CUdeviceptr address) {
    void* const word = reinterpret_cast<void*>(std::uintptr_t(address));
    if (word == nullptr || address % 4 != 0) return nullptr;
    std::byte* const seen = emulation::seen_by_device(word, 4);
    if (seen == static_cast<std::byte*>(word) && !emulation::is_registered(word, 4)) return nullptr;
    return reinterpret_cast<std::uint32_t*>(seen);
}

int write_value(cudaStream_t stream, CUdeviceptr address, std::uint32_t value, unsigned flags) {
    if (const int code = emulation::faulted("cuStreamWriteValue32")) return code;
    std::uint32_t* const word = word_at(address);
    if (word == nullptr || flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
    stream = emulation::resolved(stream);
    if (emulation::refused(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    emulation::enqueue(stream, [=] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });
    return CUDA_SUCCESS;
}

int wait_value(cudaStream_t stream, CUdeviceptr address, std::uint32_t value, unsigned flags) {
    if (const int code = emulation::faulted("cuStreamWaitValue32")) return code;
    std::uint32_t* const word = word_at(address);
    if (word == nullptr || flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
    stream = emulation::resolved(stream);
    if (emulation::refused(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    emulation::enqueue(stream, [=] {
        while (std::int32_t(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0)
            std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                        unsigned version, unsigned long long flags,
                                                        cudaDriverEntryPointQueryResult* how) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if (flags != cudaEnableDefault) return cudaErrorInvalidValue;
    *function = nullptr;
    *how = cudaDriverEntryPointSymbolNotFound;
    // Before version 12 these names were other functions, which needed a setting of the driver.
    if (emulation::answer_of(__func__) == 0 || version < 12000) return cudaSuccess;
    if (std::strcmp(symbol, "cuStreamWriteValue32") == 0)
        *function = reinterpret_cast<void*>(&write_value);
    if (std::strcmp(symbol, "cuStreamWaitValue32") == 0)
        *function = reinterpret_cast<void*>(&wait_value);
    if (*function != nullptr) *how = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
