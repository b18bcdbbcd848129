// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "../../platform/thread.hpp"
#include "../refuse.hpp"

namespace hvd {
inline namespace v0 {

/// Makes batches in a thread of its own, ahead of who uses them, at most `ahead` of them.
///
/// `make` gives a `std::optional<Batch>`, empty at the end; what it throws comes out of `next()`,
/// after the batches made before. With `ahead` 0 there is no thread: `next()` calls `make`. The
/// destructor waits for the `make` that runs.
/// **Threads**: `next()` from one at a time; `make` runs in the loader's. Feature H6.
/// @snippet tests/train/snippets.cpp loader
template <class Make>
class background_loader {
public:
    using batch_type = typename std::invoke_result_t<Make&>::value_type;

    /// @throws hvd::usage_error if the thread cannot be started.
    explicit background_loader(Make make, std::size_t ahead = 64)
        : make_(std::move(make)), ahead_(ahead) {
        if (ahead_ == 0) return;
        thread_ = detail::thread([this] { work(); });
        if (!thread_) detail::refuse(-1, "no thread for a background_loader");
    }
    background_loader(const background_loader&) = delete;
    background_loader& operator=(const background_loader&) = delete;
    ~background_loader() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        changed_.notify_all();
    }

    /// The next batch; empty at the end, and from then on.
    std::optional<batch_type> next() {
        if (ahead_ == 0) return ended_ ? std::nullopt : made_here();
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !ready_.empty() || ended_; });
        if (ready_.empty()) {
            if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
            return std::nullopt;
        }
        std::optional<batch_type> batch(std::move(ready_.front()));
        ready_.pop_front();
        lock.unlock();
        changed_.notify_all();
        return batch;
    }

private:
    std::optional<batch_type> made_here() {
        ended_ = true;  // also where it throws
        auto batch = make_();
        ended_ = !batch;
        return batch;
    }

    void work() {
        std::exception_ptr failure;
        try {
            while (wait_for_room()) {
                auto batch = make_();
                if (!batch) break;
                {
                    const std::lock_guard lock(mutex_);
                    ready_.push_back(std::move(*batch));
                }
                changed_.notify_all();
            }
        } catch (...) {
            failure = std::current_exception();
        }
        end(std::move(failure));  // after the handler: nothing of it is this thread's any more
    }

    // Before a batch is made: the one in the making is ahead, too.
    bool wait_for_room() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ready_.size() < ahead_ || stopping_; });
        return !stopping_;
    }

    void end(std::exception_ptr failure) {
        {
            const std::lock_guard lock(mutex_);
            failure_ = std::move(failure);
            ended_ = true;
        }
        changed_.notify_all();
    }

    Make make_;
    const std::size_t ahead_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<batch_type> ready_;
    std::exception_ptr failure_;
    bool ended_ = false;
    bool stopping_ = false;
    detail::thread thread_;  // the last: it is joined before what it uses goes
};

}  // namespace v0
}  // namespace hvd
