// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <unistd.h>

#include <chrono>
#include <map>
#include <numeric>

#include "streams.hpp"

namespace emulation {

// The streams of a process. A rank is a thread, and so is its process, unless other threads join.
class process : public std::enable_shared_from_this<process> {
public:
    cudaStream_t legacy(int device) {
        const std::lock_guard lock(mutex_);
        auto& stream = legacy_[device];
        if (stream == nullptr)
            stream = std::make_unique<CUstream_st>(CUstream_st::kind::legacy, shared_from_this(),
                                                   device);
        return stream.get();
    }

    void add(cudaStream_t stream) {
        const std::lock_guard lock(mutex_);
        streams_.insert(stream);
    }
    void remove(cudaStream_t stream) {
        const std::lock_guard lock(mutex_);
        streams_.erase(stream);
    }

    // The lock makes one order of all work, so that streams never wait for each other in a circle.
    void enqueue(CUstream_st& stream, std::function<void()> task) {
        const std::lock_guard lock(mutex_);
        if (stream.waits == CUstream_st::kind::legacy) {
            for (const cudaStream_t other : streams_)
                if (other->waits == CUstream_st::kind::blocking && other->device == stream.device)
                    follow(stream, *other);
        } else if (stream.waits == CUstream_st::kind::blocking) {
            const auto found = legacy_.find(stream.device);
            if (found != legacy_.end()) follow(stream, *found->second);
        }
        stream.push(std::move(task));
    }

    void finish() {
        std::vector<std::pair<std::shared_ptr<progress>, std::uint64_t>> all;
        {
            const std::lock_guard lock(mutex_);
            for (const cudaStream_t s : streams_) all.emplace_back(s->done, s->pushed());
            for (const auto& [device, s] : legacy_) all.emplace_back(s->done, s->pushed());
        }
        for (const auto& [done, number] : all) done->wait(number);
    }

private:
    static void follow(CUstream_st& stream, CUstream_st& other) {
        const std::uint64_t number = other.pushed();
        if (!other.done->reached(number))
            stream.push([done = other.done, number] { done->wait(number); });
    }

    std::mutex mutex_;
    std::set<cudaStream_t> streams_;
    std::map<int, std::unique_ptr<CUstream_st>> legacy_;
};

}  // namespace emulation

namespace {

using emulation::process;

void dawdle() {
    const unsigned choice = emulation::random_number() % 8;
    if (choice < 3) std::this_thread::yield();
    else if (choice == 3)
        std::this_thread::sleep_for(std::chrono::microseconds(emulation::random_number() % 200));
}

// True when the streams of this thread have ended: other objects of the thread may end later.
thread_local bool has_ended = false;

// The default streams of a thread end with it.
struct thread_state {
    std::shared_ptr<process> belongs_to = std::make_shared<process>();
    std::map<int, cudaStream_t> per_thread;
    pid_t pid = getpid();

    ~thread_state() {
        if (pid == getpid()) end_streams();
        has_ended = true;
    }

    void end_streams() {
        for (const auto& [device, stream] : per_thread) {
            belongs_to->remove(stream);
            delete stream;
        }
        per_thread.clear();
    }
};

thread_state& this_thread() {
    thread_local std::unique_ptr<thread_state> state;
    // A child of fork() has none of its parent's threads.
    if (state != nullptr && state->pid != getpid()) static_cast<void>(state.release());
    if (state == nullptr) state = std::make_unique<thread_state>();
    return *state;
}

cudaStream_t per_thread_stream() {
    thread_state& own = this_thread();
    const int device = emulation::device_of_this_thread();
    cudaStream_t& stream = own.per_thread[device];
    if (stream == nullptr) {
        stream = new CUstream_st(CUstream_st::kind::blocking, own.belongs_to, device);
        own.belongs_to->add(stream);
    }
    return stream;
}

cudaError_t create_stream(cudaStream_t* stream, unsigned flags) {
    const auto waits = flags == cudaStreamNonBlocking ? CUstream_st::kind::independent
                                                      : CUstream_st::kind::blocking;
    const auto& owner = this_thread().belongs_to;
    *stream = new CUstream_st(waits, owner, emulation::device_of_this_thread());
    (*stream)->kept = owner;
    owner->add(*stream);
    emulation::count_object(1);
    return cudaSuccess;
}

}  // namespace

CUstream_st::CUstream_st(kind how, std::shared_ptr<process> process, int on_device)
    : waits(how), owner(process), owner_name(process.get()), device(on_device), thread_([this] {
          run();
      }) {}

CUstream_st::~CUstream_st() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void CUstream_st::push(std::function<void()> task) {
    {
        const std::lock_guard lock(mutex_);
        tasks_.push_back(std::move(task));
        ++pushed_;
    }
    changed_.notify_all();
}

std::uint64_t CUstream_st::pushed() {
    const std::lock_guard lock(mutex_);
    return pushed_;
}

void CUstream_st::run() {
    for (std::unique_lock lock(mutex_);;) {
        changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        auto task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        dawdle();
        task();
        task = {};
        done->count();
        lock.lock();
    }
}

std::shared_ptr<emulation::process> emulation::process_of_this_thread() {
    return this_thread().belongs_to;
}

void emulation::join_process(std::shared_ptr<process> other) {
    thread_state& own = this_thread();
    own.end_streams();
    own.belongs_to = std::move(other);
}

int emulation::device_of(cudaStream_t stream) { return resolved(stream)->device; }

cudaStream_t emulation::resolved(cudaStream_t stream) {
    if (stream == nullptr || stream == cudaStreamLegacy)
        return this_thread().belongs_to->legacy(device_of_this_thread());
    return stream == cudaStreamPerThread ? per_thread_stream() : stream;
}

void emulation::enqueue(cudaStream_t stream, std::function<void()> task) {
    const cudaStream_t where = resolved(stream);
    if (add_task(where, task)) return;
    const auto owner = where->owner.lock();
    if (owner == nullptr) die("work for a stream of a thread that has ended");
    owner->enqueue(*where, std::move(task));
}

void emulation::launch(cudaStream_t stream, int blocks, std::function<void(int)> run_block) {
    enqueue(stream, [blocks, run_block = std::move(run_block)] {
        std::vector<int> order(static_cast<std::size_t>(blocks));
        std::iota(order.begin(), order.end(), 0);
        for (std::size_t i = order.size(); i > 1; --i)
            std::swap(order[i - 1], order[random_number() % i]);
        for (const int block : order) run_block(block);
    });
}

void emulation::finish_all_work() {
    if (!has_ended) this_thread().belongs_to->finish();
}

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    return create_stream(stream, flags);
}

// CUDA takes the nearest priority that the device has.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    const cudaError_t made = create_stream(stream, flags);
    (*stream)->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    return made;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    *priority = stream->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    return create_stream(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    if (const auto owner = stream->owner.lock()) owner->remove(stream);
    delete stream;
    emulation::count_object(-1);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    const cudaStream_t which = emulation::resolved(stream);
    if (const cudaError_t no = emulation::refused_in_capture(which)) return no;
    which->finish();
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    emulation::finish_all_work();
    return cudaSuccess;
}

}  // extern "C"
