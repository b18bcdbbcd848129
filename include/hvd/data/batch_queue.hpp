// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "../platform/thread.hpp"
#include "../protocol/agreement.hpp"

namespace hvd::inline v0::detail {

// Things with the numbers 0, 1, 2, …, which threads make and a reader takes in their order, however
// long each takes. At most `ahead` of them are made, or in the making, before they are taken.
template <class Make>
class batch_queue {
public:
    using made_type = std::invoke_result_t<const Make&, std::uint64_t>;

    batch_queue(Make make, std::uint64_t count, std::size_t threads, std::size_t ahead)
        : make_(std::move(make)), count_(count), slots_(ahead < count ? ahead : count) {
        if (threads > slots_.size()) threads = slots_.size();
        threads_.reserve(threads);
        for (std::size_t i = 0; i < threads; ++i) {
            threads_.emplace_back([this] { work(); });
            if (threads_.back()) continue;
            stop();
            refuse(-1, "no thread ", i + 1, " of ", threads, " for a loader");
        }
    }
    batch_queue(const batch_queue&) = delete;
    batch_queue& operator=(const batch_queue&) = delete;
    ~batch_queue() { stop(); }

    // The next thing. Its exception is thrown instead. After the last one there is none.
    std::optional<made_type> take() {
        if (taken_ == count_) return std::nullopt;
        slot mine;
        mutex_.lock();
        slot& next = slots_[taken_ % slots_.size()];
        while (!next.made && !next.failure) changed_.wait(mutex_);
        std::swap(mine, next);
        ++taken_;
        mutex_.unlock();
        changed_.notify_all();
        if (mine.failure) std::rethrow_exception(std::move(mine.failure));
        return std::move(mine.made);
    }

private:
    struct slot {
        std::optional<made_type> made;
        std::exception_ptr failure;
    };

    void work() {
        std::uint64_t number = 0;
        while (wait_for_turn(number)) {
            slot mine;
            try {
                mine.made.emplace(make_(number));
            } catch (...) {
                mine.failure = std::current_exception();
            }
            {
                const lock_guard held(mutex_);
                slots_[number % slots_.size()] = std::move(mine);
            }
            changed_.notify_all();
        }
    }

    bool wait_for_turn(std::uint64_t& number) {
        const lock_guard held(mutex_);
        while (!stopping_ && begun_ < count_ && begun_ - taken_ >= slots_.size())
            changed_.wait(mutex_);
        if (stopping_ || begun_ == count_) return false;
        number = begun_++;
        return true;
    }

    void stop() {
        {
            const lock_guard held(mutex_);
            stopping_ = true;
        }
        changed_.notify_all();
    }

    const Make make_;
    const std::uint64_t count_;
    mutex mutex_;
    condition changed_;
    std::vector<slot> slots_;  // number n is in slot n % ahead
    std::uint64_t begun_ = 0, taken_ = 0;
    bool stopping_ = false;
    // the last member, so that they are joined before the others are destroyed
    std::vector<thread> threads_;
};

}  // namespace hvd::inline v0::detail
