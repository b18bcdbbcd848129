// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <optional>
#include <utility>

#include "../../core/tuning.hpp"
#include "../../platform/thread.hpp"
#include "../../protocol/agreement.hpp"

namespace hvd::inline v0 {

/// Makes batches in its own thread, at most `ahead` of them before they are used.
///
/// `make` returns a `std::optional<Batch>`, which is empty at the end. `next()` rethrows its
/// exception, after the batches made earlier. With `ahead` 0 there is no thread, and `next()` calls
/// `make`. The destructor waits for a running `make`.
/// **Threads**: call `next()` from one thread at a time. `make` runs in the loader's thread.
/// Horovod: `AsyncDataLoaderMixin`.
/// @snippet tests/train/snippets.cpp loader
template <class Make>
class [[nodiscard("hvd: batches are loaded until it is destroyed")]] background_loader {
public:
    using batch_type = typename std::invoke_result_t<Make&>::value_type;

    /// @throws hvd::usage_error if the thread cannot be started.
    [[nodiscard("hvd: batches are loaded until it is destroyed")]]
    explicit background_loader(Make make, std::size_t ahead = detail::tuning::batches_ahead)
        : make_(std::move(make)), ahead_(ahead) {
        if (ahead_ == 0) return;
        thread_ = detail::thread([this] { work(); });
        if (!thread_) detail::refuse(-1, "no thread for a background_loader");
    }
    background_loader(const background_loader&) = delete;
    background_loader& operator=(const background_loader&) = delete;
    ~background_loader() {
        {
            const detail::lock_guard lock(mutex_);
            stopping_ = true;
        }
        changed_.notify_all();
    }

    /// Returns the next batch. It is empty at the end and from then on.
    std::optional<batch_type> next() {
        if (ahead_ == 0) return ended_ ? std::nullopt : made_here();
        std::optional<batch_type> batch;
        {
            const detail::lock_guard lock(mutex_);
            while (ready_.empty() && !ended_) changed_.wait(mutex_);
            if (ready_.empty()) {
                if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
                return std::nullopt;
            }
            batch.emplace(std::move(ready_.front()));
            ready_.pop_front();
        }
        changed_.notify_all();
        return batch;
    }

private:
    std::optional<batch_type> made_here() {
        ended_ = true;  // also if make_() throws
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
                    const detail::lock_guard lock(mutex_);
                    ready_.push_back(std::move(*batch));
                }
                changed_.notify_all();
            }
        } catch (...) {
            failure = std::current_exception();
        }
        // after the handler, so that this thread no longer holds the exception
        end(std::move(failure));
    }

    // Called before a batch is made, since that batch counts as ahead too.
    bool wait_for_room() {
        const detail::lock_guard lock(mutex_);
        while (ready_.size() >= ahead_ && !stopping_) changed_.wait(mutex_);
        return !stopping_;
    }

    void end(std::exception_ptr failure) {
        {
            const detail::lock_guard lock(mutex_);
            failure_ = std::move(failure);
            ended_ = true;
        }
        changed_.notify_all();
    }

    Make make_;
    const std::size_t ahead_;
    detail::mutex mutex_;
    detail::condition changed_;
    std::deque<batch_type> ready_;
    std::exception_ptr failure_;
    bool ended_ = false;
    bool stopping_ = false;
    // the last member, so that it is joined before the others are destroyed
    detail::thread thread_;
};

}  // namespace hvd::inline v0
