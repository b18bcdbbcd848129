// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// This is the one file that includes the CUDA runtime. It uses the C interface, which any compiler
// takes.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "../core/device_error.hpp"
#include "thread.hpp"

namespace hvd::inline v0::detail {

[[gnu::cold, noreturn]] inline void throw_cuda_error(cudaError_t code, const char* api, int rank,
                                                     std::source_location where) {
    cudaGetLastError();  // clears the error, so that the next call does not report it again
    const bool no_gpu = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver;
    throw cuda_error(
        rank, api, int(code),
        text(cudaGetErrorString(code), no_gpu ? "; no usable GPU or driver was found" : ""), where);
}

inline void check_cuda(cudaError_t code, const char* api, int rank,
                       std::source_location where = std::source_location::current()) {
    if (code != cudaSuccess) [[unlikely]]
        throw_cuda_error(code, api, rank, where);
}

// Lets this thread make any call while other streams are captured. By default CUDA refuses to
// query events, or to create and free anything, during a capture in global mode by any thread, and
// the capture becomes invalid. hvd's own calls are no part of somebody else's capture.
class capture_relaxed {
public:
    capture_relaxed() noexcept
        : changed_(cudaThreadExchangeStreamCaptureMode(&before_) == cudaSuccess) {}
    capture_relaxed(const capture_relaxed&) = delete;
    capture_relaxed& operator=(const capture_relaxed&) = delete;
    ~capture_relaxed() {
        if (changed_) cudaThreadExchangeStreamCaptureMode(&before_);
    }

private:
    cudaStreamCaptureMode before_ = cudaStreamCaptureModeRelaxed;
    bool changed_;
};

// Makes the device of a communicator current while hvd works on it, and the caller's device
// afterwards. Captures of other streams do not notice the work. A thread of hvd's begins on device
// 0, and would make a context there to come back to: it stays.
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
        if (before_ >= 0 && !is_hvd_thread) cudaSetDevice(before_);
    }

private:
    capture_relaxed relaxed_;
    int before_ = -1;
};

// Streams that others may use until the process ends, since their handles were lent. One of a
// communicator that has ended serves the next one.
class lent_streams {
public:
    static lent_streams& of_process() {
        static lent_streams* const all = new lent_streams;  // it outlives every static object
        return *all;
    }

    // Null if there is none that is free.
    cudaStream_t take(int device, int priority) {
        const lock_guard lock(mutex_);
        for (std::size_t i = 0; i < free_.size(); ++i) {
            if (free_[i].device != device || free_[i].priority != priority) continue;
            const cudaStream_t stream = free_[i].stream;
            free_.erase(free_.begin() + std::ptrdiff_t(i));
            return stream;
        }
        return nullptr;
    }
    void give_back(cudaStream_t stream, int device, int priority) noexcept {
        try {
            const lock_guard lock(mutex_);
            free_.push_back({stream, device, priority});
        } catch (...) {  // without memory nobody uses it any more
        }
    }

private:
    struct lent {
        cudaStream_t stream;
        int device, priority;
    };

    lent_streams() = default;

    mutex mutex_;
    std::vector<lent> free_;
};

// A stream of the current device that does not wait for the default stream.
class cuda_stream {
public:
    explicit cuda_stream(int rank, int priority = 0) : priority_(priority) {
        const capture_relaxed relaxed;
        check_cuda(cudaGetDevice(&device_), "cudaGetDevice", rank);
        stream_ = lent_streams::of_process().take(device_, priority);
        is_lent_ = stream_ != nullptr;
        if (is_lent_) return;
        if (priority == 0)
            check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                       "cudaStreamCreateWithFlags", rank);
        else
            check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
                       "cudaStreamCreateWithPriority", rank);
    }
    cuda_stream(const cuda_stream&) = delete;
    cuda_stream& operator=(const cuda_stream&) = delete;
    ~cuda_stream() {
        const capture_relaxed relaxed;
        if (is_lent_) lent_streams::of_process().give_back(stream_, device_, priority_);
        else cudaStreamDestroy(stream_);
    }

    cudaStream_t get() const noexcept { return stream_; }

    // For others that may use the handle for as long as the process lives, as allocators do.
    cudaStream_t lend() noexcept {
        is_lent_ = true;
        return stream_;
    }

private:
    cudaStream_t stream_ = nullptr;
    int device_ = 0, priority_;
    bool is_lent_ = false;
};

// Waits for the copies under way before a scope frees the memory it declared earlier, also when an
// exception unwinds.
struct finish_before_leaving {
    cudaStream_t stream;
    ~finish_before_leaving() {
        const capture_relaxed relaxed;
        cudaStreamSynchronize(stream);
    }
};

// A point in the work of a stream. It is empty after a move.
class cuda_event {
public:
    cuda_event() = default;
    cuda_event(cudaStream_t stream, int rank) {
        const capture_relaxed relaxed;
        check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
                   "cudaEventCreateWithFlags", rank);
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
        if (event_ == nullptr) return;
        const capture_relaxed relaxed;
        cudaEventDestroy(event_);
    }

    explicit operator bool() const noexcept { return event_ != nullptr; }

    // Returns true once the stream has reached the point.
    bool reached(int rank) const {
        const capture_relaxed relaxed;
        const cudaError_t state = cudaEventQuery(event_);
        if (state ==
            cudaErrorNotReady) {  // which is no error, but may stay as the thread's last one
            if (cudaPeekAtLastError() == cudaErrorNotReady) cudaGetLastError();
            return false;
        }
        check_cuda(state, "cudaEventQuery", rank);
        return true;
    }

    // Records the event again, on any stream. It creates the event first if it is empty.
    void record(cudaStream_t stream, int rank) {
        if (event_ == nullptr) *this = cuda_event(stream, rank);
        else check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord", rank);
    }

    void make_wait(cudaStream_t stream, int rank) const {
        check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent", rank);
    }

private:
    cudaEvent_t event_ = nullptr;
};

inline void copy_async(void* to, const void* from, std::size_t bytes, cudaMemcpyKind direction,
                       cudaStream_t stream, int rank) {
    if (bytes > 0)
        check_cuda(cudaMemcpyAsync(to, from, bytes, direction, stream), "cudaMemcpyAsync", rank);
}

// True for memory of the host that CUDA does not know and that the current device can't read.
// Where the hardware lets GPUs read all memory, there is none.
inline bool is_out_of_reach(const void* memory) {
    cudaPointerAttributes found{};
    int device = 0, reads_all_memory = 0;
    bool answered = cudaPointerGetAttributes(&found, memory) == cudaSuccess;
    if (answered && found.type != cudaMemoryTypeUnregistered) return false;
    answered = answered && cudaGetDevice(&device) == cudaSuccess &&
               cudaDeviceGetAttribute(&reads_all_memory, cudaDevAttrPageableMemoryAccess, device) ==
                   cudaSuccess;
    if (!answered) cudaGetLastError();
    return answered && reads_all_memory == 0;
}

// True while the stream is captured into a CUDA graph. Nothing may wait for enqueued work then.
inline bool is_capturing(cudaStream_t stream, int rank) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing", rank);
    return status != cudaStreamCaptureStatusNone;
}

// True if other streams may wait for what this default stream has been given. While it, or a stream
// that it waits for, is being captured, it has nothing for work outside the graph.
inline bool can_be_followed(cudaStream_t stream, int rank) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t code = cudaStreamIsCapturing(stream, &status);
    if (code == cudaErrorStreamCaptureImplicit) {
        cudaGetLastError();
        return false;
    }
    check_cuda(code, "cudaStreamIsCapturing", rank);
    return status == cudaStreamCaptureStatusNone;
}

}  // namespace hvd::inline v0::detail
