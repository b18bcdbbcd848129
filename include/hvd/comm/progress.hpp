// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../detail/thread.hpp"
#include "engine.hpp"
#include "request.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

class progress;

// An asynchronous collective in the queue of its communicator.
class queued : public pending {
public:
    operation* op = nullptr;  // lives in the class derived from this one
    time_point limit = never;
    std::shared_ptr<session> owner;
    std::shared_ptr<queued> behind;  // the next in the queue

    inline bool test() override;
    inline void wait() override;
    inline void resume_later(std::coroutine_handle<> waiter) override;
    inline void run_ready() override;
    inline void leave_unseen(std::exception_ptr failure) noexcept override;
};

// The asynchronous calls of one communicator, in their order. Where the backend allows it, a thread
// makes them go on; otherwise wait() and test() do.
class progress final : public call_queue {
public:
    explicit progress(engine& owner) : owner_(owner) {}
    ~progress() override { stop(); }

    // The communicator's queue, made by its first asynchronous call.
    static progress& of(session& session_of_call) {
        engine& owner = static_cast<engine&>(session_of_call);
        if (!owner.queue()) owner.queue() = std::make_unique<progress>(owner);
        return static_cast<progress&>(*owner.queue());
    }

    void start(const std::shared_ptr<queued>& call, time_span deadline) {
        owner_.admit_asynchronous(*call->op);
        call->owner = owner_.shared_from_this();
        call->limit = owner_.limit_for(deadline);
        {
            const lock_guard lock(mutex_);
            if (last_) last_->behind = call;
            else first_ = call;
            last_ = call;
        }
        if (!worker_ && owner_.threaded()) worker_ = thread([this] { serve(); });
        if (worker_) wake();
    }

    bool test(queued& call) {
        while (!worker_ && !call.done())
            if (!advance(*front())) return false;
        return call.done();
    }

    void wait(queued& call) {
        if (worker_) return call.wait_done();
        while (!call.done()) finish(*front());
    }

    void add_waiter(std::coroutine_handle<> handle, queued& call) { waiters_.push_back({handle, &call}); }

    std::size_t run_ready() override {
        std::size_t resumed = 0;
        for (std::size_t i = 0; i < waiters_.size();) {
            const waiter next = waiters_[i];
            if (!next.call->done() && !next.call->test()) {
                ++i;
                continue;
            }
            waiters_.erase(waiters_.begin() + std::ptrdiff_t(i));
            next.handle.resume();
            ++resumed;
            i = 0;  // the coroutine may have added others
        }
        return resumed;
    }

    void drain() noexcept override {
        if (!worker_) {
            while (const std::shared_ptr<queued> head = front()) finish(*head);
            return;
        }
        std::shared_ptr<queued> last;
        {
            const lock_guard lock(mutex_);
            last = last_;
        }
        if (last) last->wait_done();
    }

    void stop() noexcept override {
        if (!worker_) return;
        stopping_.store(true, std::memory_order_release);
        wake();
        worker_.join();
    }

private:
    struct waiter {
        std::coroutine_handle<> handle;
        queued* call;
    };

    std::shared_ptr<queued> front() {
        const lock_guard lock(mutex_);
        return first_;
    }

    void wake() {
        work_count_.fetch_add(1, std::memory_order_release);
        work_count_.notify_one();
    }

    // The progress thread.
    void serve() {
        while (!stopping_.load(std::memory_order_acquire)) {
            const std::uint64_t seen = work_count_.load(std::memory_order_acquire);
            if (const std::shared_ptr<queued> head = front()) finish(*head);
            else work_count_.wait(seen, std::memory_order_acquire);
        }
    }

    // The first call in the queue, to its end.
    void finish(queued& head) {
        std::exception_ptr failure;
        try {
            owner_.refuse_if_broken(*head.op);
            if (std::exchange(under_way_, false)) owner_.finish(*head.op, head.limit);
            else owner_.execute(*head.op, head.limit);
        } catch (...) {
            failure = std::current_exception();
        }
        pop(std::move(failure));
    }

    // Without a progress thread: the first call, as far as it goes without waiting. True when it is over.
    bool advance(queued& head) {
        std::exception_ptr failure;
        try {
            if (!std::exchange(under_way_, true)) {
                owner_.refuse_if_broken(*head.op);
                owner_.begin(*head.op);
            }
            if (!owner_.advance(*head.op, head.limit)) return false;
        } catch (...) {
            failure = std::current_exception();
        }
        under_way_ = false;
        pop(std::move(failure));
        return true;
    }

    void pop(std::exception_ptr failure) {
        std::shared_ptr<queued> head;
        {
            const lock_guard lock(mutex_);
            head = std::move(first_);
            first_ = std::move(head->behind);
            if (!first_) last_ = nullptr;
        }
        head->finish(std::move(failure));
    }

    engine& owner_;
    mutex mutex_;
    std::shared_ptr<queued> first_, last_;
    bool under_way_ = false;  // the first one has begun, without a progress thread
    std::vector<waiter> waiters_;
    std::atomic<bool> stopping_{false};
    std::atomic<std::uint64_t> work_count_{0};
    thread worker_;
};

bool queued::test() { return progress::of(*owner).test(*this); }
void queued::wait() { progress::of(*owner).wait(*this); }
void queued::resume_later(std::coroutine_handle<> waiter) { progress::of(*owner).add_waiter(waiter, *this); }
void queued::run_ready() { progress::of(*owner).run_ready(); }
void queued::leave_unseen(std::exception_ptr failure) noexcept { static_cast<engine&>(*owner).set_unseen(std::move(failure)); }

}  // namespace detail
}  // namespace v0
}  // namespace hvd
