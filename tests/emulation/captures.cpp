// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Captures of streams into graphs, and the calls that a capture forbids.

#include <algorithm>
#include <map>

#include "streams.hpp"

namespace emulation {

// A graph is a list of tasks, in the order in which they were captured.
struct capture {
    cudaStream_t origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    bool invalid = false;
    std::vector<task_maker> tasks{};
    // The streams in the capture, with the tasks before the end of each.
    std::map<cudaStream_t, std::set<std::size_t>> streams{};
};

}  // namespace emulation

namespace {

using emulation::capture;
using graph = std::vector<emulation::task_maker>;

// Guards all captures. One mutex is enough, since they are few.
std::mutex mutex;
std::vector<std::shared_ptr<capture>> captures;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

std::shared_ptr<capture> capture_of(cudaStream_t stream) {
    for (const auto& c : captures)
        if (c->streams.contains(stream)) return c;
    return nullptr;
}

bool forbids(const capture& c) {
    if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
    if (c.thread == std::this_thread::get_id()) return c.mode != cudaStreamCaptureModeRelaxed;
    return c.mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
}

bool depends_on(const capture& c, const CUstream_st& legacy) {
    return std::ranges::any_of(c.streams, [&](const auto& s) {
        return s.first->waits == CUstream_st::kind::blocking && s.first->device == legacy.device &&
               s.first->owner_name == legacy.owner_name;
    });
}

// The captures of blocking streams that work of this stream would be a part of.
std::vector<std::shared_ptr<capture>> implied_by(cudaStream_t stream) {
    std::vector<std::shared_ptr<capture>> found;
    if (stream->waits == CUstream_st::kind::legacy)
        std::ranges::copy_if(captures, std::back_inserter(found),
                             [&](const auto& c) { return depends_on(*c, *stream); });
    return found;
}

cudaError_t refused(cudaStream_t stream) {
    const auto implied = implied_by(stream);
    for (const auto& c : implied) c->invalid = true;
    if (!implied.empty()) return cudaErrorStreamCaptureImplicit;
    const auto own = capture_of(stream);
    return own != nullptr && own->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

}  // namespace

int emulation::unsafe(const char* function) {
    if (const int code = faulted(function)) return code;
    const std::lock_guard lock(mutex);
    bool forbidden = false;
    for (const auto& c : captures) {
        if (!forbids(*c)) continue;
        forbidden = c->invalid = true;
    }
    return forbidden ? failed(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t emulation::refused(cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    return ::refused(resolved(stream));
}

cudaError_t emulation::refused_in_capture(cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    if (const cudaError_t no = ::refused(stream)) return no;
    const auto own = capture_of(stream);
    if (own == nullptr) return cudaSuccess;
    own->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

bool emulation::is_capturing(cudaStream_t stream) {
    const cudaStream_t which = resolved(stream);
    const std::lock_guard lock(mutex);
    return capture_of(which) != nullptr;
}

bool emulation::add_task(cudaStream_t stream, const task_maker& make) {
    const std::lock_guard lock(mutex);
    const auto own = capture_of(stream);
    if (own == nullptr) {
        if (!implied_by(stream).empty()) die("work for the legacy stream during a capture");
        return false;
    }
    own->streams[stream].insert(own->tasks.size());
    own->tasks.push_back(make);
    return true;
}

emulation::captured_point emulation::point_of(cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    const auto own = capture_of(stream);
    if (own == nullptr) return {};
    return {own, own->streams[stream]};
}

// A stream that waits for a point of a capture becomes a part of it.
cudaError_t emulation::wait_in_capture(cudaStream_t stream, const captured_point& point) {
    const std::lock_guard lock(mutex);
    const auto own = capture_of(stream);
    if (own != nullptr && own != point.of) {
        own->invalid = true;
        return point.of == nullptr ? cudaErrorStreamCaptureIsolation : cudaErrorStreamCaptureMerge;
    }
    if (std::ranges::find(captures, point.of) == captures.end()) return cudaErrorCapturedEvent;
    if (stream->waits == CUstream_st::kind::legacy) return cudaErrorStreamCaptureUnsupported;
    point.of->streams[stream].insert(point.before.begin(), point.before.end());
    return cudaSuccess;
}

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    const cudaStream_t which = emulation::resolved(stream);
    const std::lock_guard lock(mutex);
    if (!implied_by(which).empty()) return emulation::failed(cudaErrorStreamCaptureImplicit);
    const auto own = capture_of(which);
    *status = own == nullptr ? cudaStreamCaptureStatusNone
              : own->invalid ? cudaStreamCaptureStatusInvalidated
                             : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    const cudaStream_t which = emulation::resolved(stream);
    if (which->waits == CUstream_st::kind::legacy)
        return emulation::failed(cudaErrorStreamCaptureUnsupported);
    const std::lock_guard lock(mutex);
    if (capture_of(which) != nullptr) return emulation::failed(cudaErrorIllegalState);
    const auto begun = std::make_shared<capture>(capture{which, mode, std::this_thread::get_id()});
    begun->streams[which];
    captures.push_back(begun);
    return cudaSuccess;
}

// Every stream that became a part of the capture has joined its first one again.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* result) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    const cudaStream_t which = emulation::resolved(stream);
    *result = nullptr;
    const std::lock_guard lock(mutex);
    const auto own = capture_of(which);
    if (own == nullptr) return emulation::failed(cudaErrorIllegalState);
    if (own->origin != which) return emulation::failed(cudaErrorStreamCaptureUnmatched);
    if (own->mode != cudaStreamCaptureModeRelaxed && own->thread != std::this_thread::get_id())
        return emulation::failed(cudaErrorStreamCaptureWrongThread);
    std::erase(captures, own);
    if (own->invalid) return emulation::failed(cudaErrorStreamCaptureInvalidated);
    if (own->streams[which].size() != own->tasks.size())
        return emulation::failed(cudaErrorStreamCaptureUnjoined);
    *result = reinterpret_cast<cudaGraph_t>(new graph(std::move(own->tasks)));
    emulation::count_object(1);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* result, cudaGraph_t from, unsigned long long) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    *result = reinterpret_cast<cudaGraphExec_t>(new graph(*reinterpret_cast<graph*>(from)));
    emulation::count_object(1);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t from, cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if (const cudaError_t no = emulation::refused(stream)) return emulation::failed(no);
    for (const auto& make : *reinterpret_cast<graph*>(from)) emulation::enqueue_made(stream, make);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t which) {
    delete reinterpret_cast<graph*>(which);
    emulation::count_object(-1);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t which) {
    delete reinterpret_cast<graph*>(which);
    emulation::count_object(-1);
    return cudaSuccess;
}

}  // extern "C"
