// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <numeric>

#include "streams.hpp"

namespace {

int number_from(const char* variable) {
    const char* const text = std::getenv(variable);
    return text != nullptr ? std::atoi(text) : 0;
}

std::atomic<int> shared_queues = number_from("HVD_EMULATION_QUEUES");
std::atomic<bool> locked_contexts = number_from("HVD_EMULATION_LOCKS") != 0;
std::atomic<bool> blocking_launches = number_from("CUDA_LAUNCH_BLOCKING") != 0;

}  // namespace

namespace emulation {

// The streams of a process. A rank is a thread, and so is its process, unless other threads join.
class process : public std::enable_shared_from_this<process> {
public:
    cudaStream_t legacy(int device) {
        const std::lock_guard lock(mutex_);
        auto& stream = legacy_[device];
        if (stream == nullptr)
            stream = std::make_unique<CUstream_st>(CUstream_st::kind::legacy, shared_from_this(),
                                                   device, next_queue(device));
        return stream.get();
    }

    // A stream that the process owns until remove().
    cudaStream_t make(CUstream_st::kind how, int device) {
        const std::lock_guard lock(mutex_);
        const auto stream = new CUstream_st(how, shared_from_this(), device, next_queue(device));
        streams_.insert(stream);
        return stream;
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

    std::recursive_mutex context;  // kept by a thread that waits for a device

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
    std::shared_ptr<hardware_queue> next_queue(int device) {
        const auto count = std::size_t(shared_queues.load());
        if (count == 0) return std::make_shared<hardware_queue>();
        auto& of_device = queues_[device];
        of_device.resize(count);
        auto& queue = of_device[made_++ % count];
        if (queue == nullptr) queue = std::make_shared<hardware_queue>();
        return queue;
    }

    static void follow(CUstream_st& stream, CUstream_st& other) {
        const std::uint64_t number = other.pushed();
        if (!other.done->reached(number))
            stream.push([done = other.done, number] { done->wait(number); });
    }

    std::mutex mutex_;
    std::set<cudaStream_t> streams_;
    std::map<int, std::vector<std::shared_ptr<hardware_queue>>> queues_;
    std::size_t made_ = 0;
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
    if (stream == nullptr) stream = own.belongs_to->make(CUstream_st::kind::blocking, device);
    return stream;
}

// The streams that have been destroyed. Their places are not used again, so that a handle which is
// used too late is noticed.
std::mutex destroyed_mutex;
std::set<cudaStream_t>& destroyed() {
    static auto* const all = new std::set<cudaStream_t>;
    return *all;
}

void destroy(cudaStream_t stream) {
    stream->~CUstream_st();
    const std::lock_guard lock(destroyed_mutex);
    destroyed().insert(stream);
}

void die_if_destroyed(cudaStream_t stream) {
    const std::lock_guard lock(destroyed_mutex);
    if (destroyed().contains(stream)) emulation::die("a stream is used that was destroyed");
}

cudaError_t create_stream(cudaStream_t* stream, unsigned flags) {
    const auto waits = flags == cudaStreamNonBlocking ? CUstream_st::kind::independent
                                                      : CUstream_st::kind::blocking;
    const auto& owner = this_thread().belongs_to;
    *stream = owner->make(waits, emulation::device_of_this_thread());
    (*stream)->kept = owner;
    emulation::count_object(1);
    return cudaSuccess;
}

}  // namespace

CUstream_st::CUstream_st(kind how, std::shared_ptr<process> process, int on_device,
                         std::shared_ptr<emulation::hardware_queue> queue)
    : waits(how),
      owner(process),
      owner_name(process.get()),
      device(on_device),
      queue_(std::move(queue)) {}

CUstream_st::~CUstream_st() { finish(); }

void CUstream_st::push(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    ++pushed_;
    queue_->push(std::move(task), done);
}

std::uint64_t CUstream_st::pushed() {
    const std::lock_guard lock(mutex_);
    return pushed_;
}

emulation::hardware_queue::~hardware_queue() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void emulation::hardware_queue::push(std::function<void()> task, std::shared_ptr<progress> done) {
    {
        const std::lock_guard lock(mutex_);
        tasks_.emplace_back(std::move(task), std::move(done));
    }
    changed_.notify_all();
}

void emulation::hardware_queue::run() {
    for (std::unique_lock lock(mutex_);;) {
        changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        auto [task, done] = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        dawdle();
        task();
        task = {};
        done->count();
        lock.lock();
    }
}

void emulation::share_queues(int count) { shared_queues = count; }
void emulation::lock_contexts(bool are_locked) { locked_contexts = are_locked; }
void emulation::block_launches(bool are_blocking) { blocking_launches = are_blocking; }
bool emulation::launches_block() { return blocking_launches; }

std::function<bool()> emulation::end_of_work(cudaStream_t stream) {
    const cudaStream_t where = resolved(stream);
    return [done = where->done, number = where->pushed()] { return done->reached(number); };
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
    if (stream == cudaStreamPerThread) return per_thread_stream();
    die_if_destroyed(stream);
    return stream;
}

void emulation::enqueue(cudaStream_t stream, std::function<void()> task) {
    enqueue_made(stream, [task = std::move(task)] { return task; });
}

void emulation::enqueue_made(cudaStream_t stream, task_maker make) {
    const cudaStream_t where = resolved(stream);
    if (add_task(where, make)) return;
    const auto owner = where->owner.lock();
    if (owner == nullptr) die("work for a stream of a thread that has ended");
    owner->enqueue(*where, make());
}

namespace {

std::vector<int> shuffled(int blocks) {
    std::vector<int> order(static_cast<std::size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[emulation::random_number() % i]);
    return order;
}

void wait_as_launches_do(cudaStream_t stream) {
    if (blocking_launches && !emulation::is_capturing(stream))
        emulation::resolved(stream)->finish();
}

}  // namespace

void emulation::launch(cudaStream_t stream, int blocks, std::function<void(int)> run_block) {
    enqueue(stream, [blocks, run_block = std::move(run_block)] {
        for (const int block : shuffled(blocks)) run_block(block);
    });
    wait_as_launches_do(stream);
}

void emulation::launch(cudaStream_t stream, int blocks, unsigned threads,
                       std::function<void(int, unsigned)> run_thread) {
    enqueue(stream, [blocks, threads, run_thread = std::move(run_thread)] {
        const std::vector<int> order = shuffled(blocks);
        for (std::size_t first = 0, next; first < order.size(); first = next) {
            next = std::min(order.size(), first + 1 + random_number() % 4);
            for (unsigned thread = 0; thread < threads; ++thread)
                for (std::size_t i = first; i < next; ++i) run_thread(order[i], thread);
        }
    });
    wait_as_launches_do(stream);
}

void emulation::finish_all_work() {
    if (has_ended) return;
    const auto process = this_thread().belongs_to;
    const std::unique_lock<std::recursive_mutex> context =
        locked_contexts ? std::unique_lock(process->context)
                        : std::unique_lock<std::recursive_mutex>();
    process->finish();
}

bool emulation::contexts_are_locked() { return locked_contexts; }

void emulation::pass_context(const std::shared_ptr<process>& of) {
    if (!locked_contexts || of == nullptr) return;
    const std::lock_guard passed(of->context);
}

void emulation::pass_context() {
    if (locked_contexts && !has_ended) pass_context(this_thread().belongs_to);
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
    *priority = emulation::resolved(stream)->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    return create_stream(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    die_if_destroyed(stream);
    const int code = emulation::unsafe(__func__);
    if (code != cudaSuccess && !emulation::is_corrupted()) return cudaError_t(code);
    if (const auto owner = stream->owner.lock()) owner->remove(stream);
    destroy(stream);
    emulation::count_object(-1);
    return cudaError_t(code);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    const cudaStream_t which = emulation::resolved(stream);
    if (const cudaError_t no = emulation::refused_in_capture(which)) return emulation::failed(no);
    which->finish();
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    if (!has_ended) this_thread().belongs_to->finish();
    return cudaSuccess;
}

}  // extern "C"
