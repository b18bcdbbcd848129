// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include "../../platform/cuda_api.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The two calls of the driver by which streams write words of memory and wait for words. A stream
// that waits occupies no part of the GPU. The runtime finds them, so that nothing more is linked,
// and <cuda.h> is not needed: the types are those of its header, and an error is a number.
class stream_values {
public:
    // True if the driver has them. The runtime can look for them since CUDA 12.5.
    bool find() noexcept {
        const capture_relaxed relaxed;
        return find("cuStreamWriteValue32", write_) && find("cuStreamWaitValue32", wait_);
    }

    // The stream's earlier work is seen by everyone who sees the value.
    void write(cudaStream_t stream, std::uint32_t* word, std::uint32_t value, int rank) const {
        check(write_(stream, address_of(word), value, write_default), "cuStreamWriteValue32", rank);
    }

    // The stream waits for the value, or one that comes after it. Numbers begin again after 2^32.
    void wait(cudaStream_t stream, std::uint32_t* word, std::uint32_t value, int rank) const {
        check(wait_(stream, address_of(word), value, wait_until_reached), "cuStreamWaitValue32",
              rank);
    }

private:
    using function = int (*)(cudaStream_t, unsigned long long, std::uint32_t, unsigned);
    static constexpr unsigned write_default = 0;  // CU_STREAM_WRITE_VALUE_DEFAULT: with a fence
    static constexpr unsigned wait_until_reached = 0;  // CU_STREAM_WAIT_VALUE_GEQ

    static bool find(const char* name, function& place) noexcept {
        void* found = nullptr;
#if CUDART_VERSION >= 12050
        cudaDriverEntryPointQueryResult how{};
        const cudaError_t code =
            cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &how);
        if (code != cudaSuccess) cudaGetLastError();
        else if (how == cudaDriverEntryPointSuccess) place = reinterpret_cast<function>(found);
#else
        static_cast<void>(name);
        static_cast<void>(found);
#endif
        return place != nullptr;
    }

    static unsigned long long address_of(std::uint32_t* word) {
        return reinterpret_cast<std::uintptr_t>(word);
    }

    static void check(int code, const char* api, int rank) {
        if (code != 0) [[unlikely]]
            throw cuda_error(rank, api, code, "an error of the CUDA driver",
                             std::source_location::current());
    }

    function write_ = nullptr, wait_ = nullptr;
};

// Host memory that the streams of this process may read and write. It is empty if CUDA refused.
class registered_memory {
public:
    registered_memory() = default;
    registered_memory(void* memory, std::size_t bytes) noexcept {
        const capture_relaxed relaxed;
        if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) ==
            cudaSuccess)
            memory_ = memory;
        else cudaGetLastError();
    }
    registered_memory(registered_memory&& other) noexcept
        : memory_(std::exchange(other.memory_, nullptr)) {}
    registered_memory& operator=(registered_memory&& other) noexcept {
        std::swap(memory_, other.memory_);
        return *this;
    }
    ~registered_memory() {
        if (memory_ == nullptr) return;
        const capture_relaxed relaxed;
        cudaHostUnregister(memory_);
    }

    // Returns the address for streams of the current device, or null.
    void* seen_by_device() const noexcept {
        void* seen = nullptr;
        if (memory_ == nullptr) return nullptr;
        if (cudaHostGetDevicePointer(&seen, memory_, 0) == cudaSuccess) return seen;
        cudaGetLastError();
        return nullptr;
    }

    void leave() noexcept { memory_ = nullptr; }

private:
    void* memory_ = nullptr;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
