// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "streams.hpp"

namespace {

// Guards all events. One mutex is enough, since they are few.
std::mutex events_mutex;
std::condition_variable events_changed;

}  // namespace

struct CUevent_st {
    std::shared_ptr<bool> recorded =
        std::make_shared<bool>(true);                 // true once the latest record is reached
    int device = emulation::device_of_this_thread();  // whose streams record it
    std::weak_ptr<emulation::process> owner = emulation::process_of_this_thread();
    emulation::captured_point captured{};  // set if the latest record was captured
};

extern "C" {

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    stream = emulation::resolved(stream);
    if (const cudaError_t no = emulation::refused(stream)) return emulation::failed(no);
    const std::unique_lock events_lock(events_mutex);
    if (event->captured.of != nullptr || emulation::is_capturing(stream))
        return emulation::wait_in_capture(stream, event->captured);
    emulation::enqueue(stream, [recorded = event->recorded] {
        std::unique_lock lock(events_mutex);
        events_changed.wait(lock, [&] { return *recorded; });
    });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    if (flags != cudaEventDisableTiming) return emulation::failed(cudaErrorInvalidValue);
    *event = new CUevent_st;
    emulation::count_object(1);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const int code = emulation::unsafe(__func__);
    if (code != cudaSuccess && !emulation::is_corrupted()) return cudaError_t(code);
    delete event;
    emulation::count_object(-1);
    return cudaError_t(code);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    stream = emulation::resolved(stream);
    if (const cudaError_t no = emulation::refused(stream)) return emulation::failed(no);
    if (stream->device != event->device) return emulation::failed(cudaErrorInvalidResourceHandle);
    const std::lock_guard lock(events_mutex);
    event->captured = emulation::point_of(stream);
    if (event->captured.of != nullptr) return cudaSuccess;
    event->recorded = std::make_shared<bool>(false);
    emulation::enqueue(stream, [recorded = event->recorded] {
        {
            const std::lock_guard lock(events_mutex);
            *recorded = true;
        }
        events_changed.notify_all();
    });
    return cudaSuccess;
}

// The context is that of the event, whichever thread asks.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    emulation::pass_context(event->owner.lock());
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    const std::lock_guard lock(events_mutex);
    if (event->captured.of != nullptr) return emulation::failed(cudaErrorCapturedEvent);
    if (*event->recorded) return cudaSuccess;
    // CUDA does not say if this becomes the last error.
    int& last = emulation::last_error();
    if (last == cudaSuccess) last = cudaErrorNotReady;
    return cudaErrorNotReady;
}

}  // extern "C"
