// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The one place that includes the CUDA runtime: its C interface, which any compiler takes.
#include <cuda_runtime_api.h>

#include <utility>

#include "../core/device_error.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

[[gnu::cold, noreturn]] inline void throw_cuda_error(cudaError_t code, const char* api, int rank, std::source_location where) {
    cudaGetLastError();  // the next call is not to blame for this one
    const bool no_gpu = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver;
    throw cuda_error(rank, api, int(code), text(cudaGetErrorString(code), no_gpu ? "; no usable GPU or driver was found" : ""), where);
}

inline void check_cuda(cudaError_t code, const char* api, int rank, std::source_location where = std::source_location::current()) {
    if (code != cudaSuccess) [[unlikely]] throw_cuda_error(code, api, rank, where);
}

// The device of a communicator is current while hvd works on it, and the caller's afterwards.
class current_device {
public:
    current_device(int device, int rank) {
        check_cuda(cudaGetDevice(&before_), "cudaGetDevice", rank);
        if (before_ == device) before_ = -1;
        else check_cuda(cudaSetDevice(device), "cudaSetDevice", rank);
    }
    current_device(const current_device&) = delete;
    current_device& operator=(const current_device&) = delete;
    ~current_device() {
        if (before_ >= 0) cudaSetDevice(before_);
    }

private:
    int before_ = -1;
};

// A stream that does not wait for the default stream.
class cuda_stream {
public:
    explicit cuda_stream(int rank) {
        check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", rank);
    }
    cuda_stream(const cuda_stream&) = delete;
    cuda_stream& operator=(const cuda_stream&) = delete;
    ~cuda_stream() { cudaStreamDestroy(stream_); }

    cudaStream_t get() const noexcept { return stream_; }

private:
    cudaStream_t stream_ = nullptr;
};

// A point in the work of a stream. Empty when moved from.
class cuda_event {
public:
    cuda_event() = default;
    cuda_event(cudaStream_t stream, int rank) {
        check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags", rank);
        const cudaError_t recorded = cudaEventRecord(event_, stream);
        if (recorded == cudaSuccess) return;
        cudaEventDestroy(event_);
        check_cuda(recorded, "cudaEventRecord", rank);
    }
    cuda_event(cuda_event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    cuda_event& operator=(cuda_event&& other) noexcept {
        std::swap(event_, other.event_);
        return *this;
    }
    ~cuda_event() {
        if (event_ != nullptr) cudaEventDestroy(event_);
    }

    // Whether the stream has come to it.
    bool reached(int rank) const {
        const cudaError_t state = cudaEventQuery(event_);
        if (state == cudaErrorNotReady) return false;
        check_cuda(state, "cudaEventQuery", rank);
        return true;
    }

    void make_wait(cudaStream_t stream, int rank) const { check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent", rank); }

private:
    cudaEvent_t event_ = nullptr;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
