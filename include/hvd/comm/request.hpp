// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <atomic>
#include <coroutine>
#include <exception>
#include <memory>
#include <utility>

#include "../core/error.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// An asynchronous call that is under way.
class pending {
public:
    virtual ~pending() = default;

    // Both throw only what the backend's own waiting throws; the call's failure comes from result().
    virtual bool test() = 0;
    virtual void wait() = 0;
    // Resumes `waiter` from the communicator's run_ready() once the call is complete.
    virtual void resume_later(std::coroutine_handle<> waiter) = 0;
    virtual void run_ready() = 0;
    // The next call on the communicator throws a failure that nobody has looked at.
    virtual void leave_unseen(std::exception_ptr failure) noexcept = 0;

    bool done() const { return done_.load(std::memory_order_acquire); }
    void wait_done() const { done_.wait(false, std::memory_order_acquire); }

    void finish(std::exception_ptr failure) {
        failure_ = std::move(failure);
        done_.store(true, std::memory_order_release);
        done_.notify_all();
    }

    // Once: whoever looks first has seen it.
    std::exception_ptr take_failure() { return std::exchange(failure_, nullptr); }

protected:
    std::atomic<bool> done_{false};

private:
    std::exception_ptr failure_;
};

}  // namespace detail

/// An asynchronous call that is under way; whoever holds it holds its completion. Feature B3.
///
/// **Buffers** of the call stay untouched until it is complete. **Completion**: `wait()`, a `test()`
/// that is true, `co_await`, or the destructor, which waits. Movable; empty when moved from, and then
/// complete. **Threads**: used by one thread at a time, the communicator's.
/// @throws from `wait()`, `test()` and `co_await` what the call failed with, once.
class [[nodiscard("hvd: an asynchronous call is not complete until its request is waited for")]] request {
public:
    request() = default;
    explicit request(std::shared_ptr<detail::pending> call) : call_(std::move(call)) {}
    request(request&&) noexcept = default;
    request& operator=(request&& other) noexcept {
        if (this != &other) {
            finish_quietly();
            call_ = std::move(other.call_);
        }
        return *this;
    }
    ~request() { finish_quietly(); }

    /// Whether it stands for a call that nobody has waited for.
    explicit operator bool() const noexcept { return call_ != nullptr; }

    /// Looks once whether the call is complete.
    bool test() {
        if (call_ == nullptr) return true;
        if (!call_->done() && !call_->test()) return false;
        collect();
        return true;
    }

    /// Waits until the call is complete, and resumes coroutines whose calls are. Where no progress thread
    /// runs (MPI below MULTIPLE), ranks wait for calls of several communicators in one order.
    void wait() {
        if (call_ == nullptr) return;
        if (!call_->done()) call_->wait();
        collect();
    }

    /// Resumes on the thread that next waits on the communicator or calls its `run_ready()`.
    auto operator co_await() {
        struct awaiter {
            request& self;
            bool await_ready() { return self.call_ == nullptr || self.call_->done(); }
            void await_suspend(std::coroutine_handle<> waiter) { self.call_->resume_later(waiter); }
            void await_resume() { self.collect(); }
        };
        return awaiter{*this};
    }

private:
    void collect() {
        const std::shared_ptr<detail::pending> call = std::move(call_);
        call_ = nullptr;
        if (call == nullptr) return;
        const std::exception_ptr failure = call->take_failure();
        call->run_ready();
        if (failure) std::rethrow_exception(failure);
    }

    void finish_quietly() noexcept {
        if (call_ == nullptr) return;
        try {
            if (!call_->done()) call_->wait();
            if (auto failure = call_->take_failure()) call_->leave_unseen(failure);
        } catch (...) {
            call_->leave_unseen(std::current_exception());
        }
        call_ = nullptr;
    }

    std::shared_ptr<detail::pending> call_;
};

/// An asynchronous call with a result.
template <class T>
class [[nodiscard("hvd: an asynchronous call is not complete until its result is waited for")]] result {
public:
    result() = default;
    result(request call, std::shared_ptr<T> value) : call_(std::move(call)), value_(std::move(value)) {}
    result(result&&) noexcept = default;
    result& operator=(result&&) noexcept = default;

    explicit operator bool() const noexcept { return value_ != nullptr; }

    /// Looks once whether the call is complete.
    bool test() { return call_.test(); }

    /// Waits for the call and gives its result; the handle is empty afterwards.
    /// @throws hvd::usage_error if the result has been taken before.
    T wait() {
        if (value_ == nullptr) throw usage_error(-1, "hvd: this result was taken before");
        call_.wait();
        const std::shared_ptr<T> value = std::exchange(value_, nullptr);
        return std::move(*value);
    }

    auto operator co_await() {
        struct awaiter {
            result& self;
            decltype(std::declval<request&>().operator co_await()) inner;
            bool await_ready() { return inner.await_ready(); }
            void await_suspend(std::coroutine_handle<> waiter) { inner.await_suspend(waiter); }
            T await_resume() {
                inner.await_resume();
                return self.wait();
            }
        };
        return awaiter{*this, call_.operator co_await()};
    }

private:
    request call_;
    std::shared_ptr<T> value_;
};

}  // namespace v0
}  // namespace hvd
