// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "streams.hpp"

namespace {

// Guards all events. One mutex is enough, since they are few.
std::mutex events_mutex;
std::condition_variable events_changed;

// The data of an event that processes share: the number of its latest record, and of the latest
// record that a stream has reached.
struct shared_event {
    std::atomic<std::uint64_t> recorded, reached;
};

// The data that another process needs to open the event.
struct exported_event {
    pid_t process;
    int file;
};
static_assert(sizeof(exported_event) <= sizeof(cudaIpcEventHandle_t));

// The page is mapped as long as the event, or work that waits for it, exists.
class shared_event_page {
public:
    explicit shared_event_page(int file)
        : file_(file),
          page_(static_cast<shared_event*>(
              mmap(nullptr, sizeof(shared_event), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0))) {
        if (page_ == MAP_FAILED) emulation::die("an event can't be mapped");
    }
    shared_event_page(const shared_event_page&) = delete;
    ~shared_event_page() {
        munmap(page_, sizeof(shared_event));
        close(file_);
    }

    static std::shared_ptr<shared_event_page> create() {
        const int file = memfd_create("hvd-emulation-event", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, sizeof(shared_event)) != 0)
            emulation::die("an event can't be made");
        return std::make_shared<shared_event_page>(file);
    }

    int file() const { return file_; }
    shared_event* operator->() const { return page_; }

private:
    int file_;
    shared_event* page_;
};

}  // namespace

struct CUevent_st {
    std::shared_ptr<bool> recorded =
        std::make_shared<bool>(true);             // true once the latest record is reached
    std::shared_ptr<shared_event_page> shared{};  // used instead by an interprocess event
    bool foreign = false;
    int device = emulation::device_of_this_thread();  // whose streams record it
    emulation::captured_point captured{};             // set if the latest record was captured
};

namespace {

// The driver knows all events, so that one which its owner keeps for good is no leak of memory.
std::set<cudaEvent_t>& live_events = *new std::set<cudaEvent_t>;

cudaEvent_t make_event() {
    const std::lock_guard lock(events_mutex);
    emulation::count_object(1);
    return *live_events.insert(new CUevent_st).first;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    stream = emulation::resolved(stream);
    if (const cudaError_t no = emulation::refused(stream)) return no;
    if (event->shared != nullptr) {
        emulation::enqueue(stream,
                           [page = event->shared, number = (*event->shared)->recorded.load()] {
                               while ((*page)->reached < number)
                                   std::this_thread::sleep_for(std::chrono::microseconds(20));
                           });
        return cudaSuccess;
    }
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
    if ((flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0)
        return cudaErrorInvalidValue;
    *event = make_event();
    if ((flags & cudaEventInterprocess) != 0) (*event)->shared = shared_event_page::create();
    return cudaSuccess;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    if (event->shared == nullptr) return cudaErrorInvalidResourceHandle;
    const exported_event exported{getpid(), event->shared->file()};
    std::memcpy(handle, &exported, sizeof exported);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    exported_event exported;
    std::memcpy(&exported, &handle, sizeof exported);
    const int file = emulation::open_of_another_process(exported.process, exported.file);
    if (file < 0) return cudaErrorInvalidResourceHandle;
    *event = make_event();
    (*event)->shared = std::make_shared<shared_event_page>(file);
    (*event)->foreign = true;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    {
        const std::lock_guard lock(events_mutex);
        live_events.erase(event);
    }
    delete event;
    emulation::count_object(-1);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    stream = emulation::resolved(stream);
    if (const cudaError_t no = emulation::refused(stream)) return no;
    if (event->foreign) emulation::die("an event of another process is recorded");
    if (stream->device != event->device) return cudaErrorInvalidResourceHandle;
    if (event->shared != nullptr) {
        emulation::enqueue(stream, [page = event->shared, number = ++(*event->shared)->recorded] {
            (*page)->reached = number;
        });
        return cudaSuccess;
    }
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

cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    if (event->shared != nullptr)
        return (*event->shared)->reached >= (*event->shared)->recorded ? cudaSuccess
                                                                       : cudaErrorNotReady;
    const std::lock_guard lock(events_mutex);
    if (event->captured.of != nullptr) return cudaErrorCapturedEvent;
    return *event->recorded ? cudaSuccess : cudaErrorNotReady;
}

}  // extern "C"
