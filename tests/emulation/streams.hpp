// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The parts of a stream that streams.cpp, events.cpp and captures.cpp share.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "emulation.hpp"

namespace emulation {

// The number of tasks that a stream has done. Work of other streams waits for it, also after the
// stream is destroyed.
class progress {
public:
    void count() {
        {
            const std::lock_guard lock(mutex_);
            ++done_;
        }
        changed_.notify_all();
    }
    bool reached(std::uint64_t number) {
        const std::lock_guard lock(mutex_);
        return done_ >= number;
    }
    void wait(std::uint64_t number) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return done_ >= number; });
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t done_ = 0;
};

// One of a device's queues, which several streams share. Its work runs in the order in which it was
// given, also work of different streams.
class hardware_queue {
public:
    hardware_queue() : thread_([this] { run(); }) {}
    hardware_queue(const hardware_queue&) = delete;
    ~hardware_queue();
    void push(std::function<void()> task, std::shared_ptr<progress> done);

private:
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::pair<std::function<void()>, std::shared_ptr<progress>>> tasks_;
    bool ending_ = false;
    std::thread thread_;
};

struct capture;

// A point in a capture: the tasks before it.
struct captured_point {
    std::shared_ptr<capture> of;
    std::set<std::size_t> before;
};

// All return without an effect if the stream is not captured. `add_task` is true if it took it.
bool add_task(cudaStream_t stream, const task_maker& make);
captured_point point_of(cudaStream_t stream);
cudaError_t wait_in_capture(cudaStream_t stream, const captured_point& point);
bool captures_blocking_stream(const process* owner, int device);

}  // namespace emulation

// A stream has a queue, which is a thread. A blocking stream and the legacy default stream of its
// device and process wait for each other's earlier work.
struct CUstream_st {
    enum class kind { legacy, blocking, independent };

    CUstream_st(kind how, std::shared_ptr<emulation::process> process, int on_device,
                std::shared_ptr<emulation::hardware_queue> queue);
    CUstream_st(const CUstream_st&) = delete;
    ~CUstream_st();

    void push(std::function<void()> task);
    std::uint64_t pushed();  // the number of tasks up to now
    void finish() { done->wait(pushed()); }

    const kind waits;
    const std::weak_ptr<emulation::process> owner;
    const emulation::process* const owner_name;
    const int device;
    int priority = 0;
    std::shared_ptr<emulation::process> kept;  // the owner, by a stream that a program made
    const std::shared_ptr<emulation::progress> done = std::make_shared<emulation::progress>();

private:
    const std::shared_ptr<emulation::hardware_queue> queue_;
    std::mutex mutex_;
    std::uint64_t pushed_ = 0;
};
