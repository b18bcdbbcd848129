// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "emulation.hpp"

namespace {

void dawdle() {
    const unsigned choice = emulation::random_number() % 8;
    if (choice < 3) std::this_thread::yield();
    else if (choice == 3)
        std::this_thread::sleep_for(std::chrono::microseconds(emulation::random_number() % 200));
}

// Guards all events. One mutex is enough, since they are few.
std::mutex events_mutex;
std::condition_variable events_changed;

// A rank is a thread, so these are all streams that its process would have.
thread_local std::set<cudaStream_t> streams_of_this_thread;

}  // namespace

struct CUstream_st {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool busy = false, ending = false, capturing = false;
    std::vector<std::function<void()>> captured;
    std::thread thread{[this] { run(); }};

    CUstream_st() { emulation::count_object(1); }
    ~CUstream_st() {
        {
            const std::lock_guard lock(mutex);
            ending = true;
        }
        changed.notify_all();
        thread.join();
        emulation::count_object(-1);
    }

    void run() {
        for (std::unique_lock lock(mutex);;) {
            changed.wait(lock, [this] { return ending || !tasks.empty(); });
            if (tasks.empty()) return;
            const auto task = std::move(tasks.front());
            tasks.pop_front();
            busy = true;
            lock.unlock();
            dawdle();
            task();
            lock.lock();
            busy = false;
            changed.notify_all();
        }
    }

    bool idle() const { return tasks.empty() && !busy; }
};

namespace {

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
};

void emulation::enqueue(cudaStream_t stream, std::function<void()> task) {
    if (reinterpret_cast<std::uintptr_t>(stream) <= 2)
        die("work for the default stream, which hvd never uses");
    {
        const std::lock_guard lock(stream->mutex);
        if (stream->capturing) return stream->captured.push_back(std::move(task));
        stream->tasks.push_back(std::move(task));
    }
    stream->changed.notify_all();
}

bool emulation::is_capturing(cudaStream_t stream) {
    const std::lock_guard lock(stream->mutex);
    return stream->capturing;
}

void emulation::launch(cudaStream_t stream, int blocks, int threads,
                       std::function<void(int, int)> body) {
    enqueue(stream, [=] {
        std::vector<int> order(static_cast<std::size_t>(blocks));
        std::iota(order.begin(), order.end(), 0);
        for (std::size_t i = order.size(); i > 1; --i)
            std::swap(order[i - 1], order[random_number() % i]);
        for (const int block : order)
            for (int thread = 0; thread < threads; ++thread) body(block, thread);
    });
}

void emulation::finish_all_work() {
    for (const cudaStream_t stream : streams_of_this_thread) {
        std::unique_lock lock(stream->mutex);
        stream->changed.wait(lock, [stream] { return stream->idle(); });
    }
}

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    *stream = new CUstream_st;
    streams_of_this_thread.insert(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    streams_of_this_thread.erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    std::unique_lock lock(stream->mutex);
    stream->changed.wait(lock, [stream] { return stream->idle(); });
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if (event->shared != nullptr) {
        emulation::enqueue(stream,
                           [page = event->shared, number = (*event->shared)->recorded.load()] {
                               while ((*page)->reached < number)
                                   std::this_thread::sleep_for(std::chrono::microseconds(20));
                           });
        return cudaSuccess;
    }
    const std::unique_lock events_lock(events_mutex);
    emulation::enqueue(stream, [recorded = event->recorded] {
        std::unique_lock lock(events_mutex);
        events_changed.wait(lock, [&] { return *recorded; });
    });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if ((flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0)
        return cudaErrorInvalidValue;
    *event = new CUevent_st;
    if ((flags & cudaEventInterprocess) != 0) (*event)->shared = shared_event_page::create();
    emulation::count_object(1);
    return cudaSuccess;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if (event->shared == nullptr) return cudaErrorInvalidResourceHandle;
    const exported_event exported{getpid(), event->shared->file()};
    std::memcpy(handle, &exported, sizeof exported);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    exported_event exported;
    std::memcpy(&exported, &handle, sizeof exported);
    const int file = emulation::open_of_another_process(exported.process, exported.file);
    if (file < 0) return cudaErrorInvalidResourceHandle;
    *event = new CUevent_st;
    (*event)->shared = std::make_shared<shared_event_page>(file);
    (*event)->foreign = true;
    emulation::count_object(1);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    delete event;
    emulation::count_object(-1);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if (event->foreign) emulation::die("an event of another process is recorded");
    if (event->shared != nullptr) {
        emulation::enqueue(stream, [page = event->shared, number = ++(*event->shared)->recorded] {
            (*page)->reached = number;
        });
        return cudaSuccess;
    }
    const std::lock_guard lock(events_mutex);
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
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if (event->shared != nullptr)
        return (*event->shared)->reached >= (*event->shared)->recorded ? cudaSuccess
                                                                       : cudaErrorNotReady;
    const std::lock_guard lock(events_mutex);
    return *event->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    *status = emulation::is_capturing(stream) ? cudaStreamCaptureStatusActive
                                              : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

// A graph is the list of tasks of one stream.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    const std::lock_guard lock(stream->mutex);
    stream->capturing = true;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    const std::lock_guard lock(stream->mutex);
    stream->capturing = false;
    *graph = reinterpret_cast<cudaGraph_t>(
        new std::vector<std::function<void()>>(std::exchange(stream->captured, {})));
    emulation::count_object(1);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* result, cudaGraph_t graph, unsigned long long) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    *result = reinterpret_cast<cudaGraphExec_t>(
        new std::vector(*reinterpret_cast<std::vector<std::function<void()>>*>(graph)));
    emulation::count_object(1);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    for (const auto& task : *reinterpret_cast<std::vector<std::function<void()>>*>(graph))
        emulation::enqueue(stream, task);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete reinterpret_cast<std::vector<std::function<void()>>*>(graph);
    emulation::count_object(-1);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete reinterpret_cast<std::vector<std::function<void()>>*>(graph);
    emulation::count_object(-1);
    return cudaSuccess;
}

}  // extern "C"
