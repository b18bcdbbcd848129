// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>

#include "progress.hpp"

namespace hvd {
inline namespace v0 {
/// An asynchronous call that is under way; whoever holds it holds its completion. Feature B3.
///
/// **Buffers** of the call stay untouched until it is complete. **Completion**: `wait()`, a
/// `test()` that is true, `co_await`, or the destructor, which waits. Movable; empty when moved
/// from, and then complete. **Threads**: used by one thread at a time, the communicator's.
/// @throws from `wait()`, `test()` and `co_await` what the call failed with, once.
class [[nodiscard(
    "hvd: an asynchronous call is not complete until its request is waited for")]] request {
public:
    request() = default;
    explicit request(detail::shared<detail::queued> call) : call_(std::move(call)) {}
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
    explicit operator bool() const noexcept { return bool(call_); }

    /// Looks once whether the call is complete.
    bool test() {
        if (!call_) return true;
        if (!call_->done() && !call_->test()) return false;
        collect();
        return true;
    }

    /// Waits until the call is complete, and resumes coroutines whose calls are. Where no progress
    /// thread runs (MPI below MULTIPLE), ranks wait for calls of several communicators in one
    /// order.
    void wait() {
        if (!call_) return;
        if (!call_->done()) call_->wait();
        collect();
    }

    /// Resumes on the thread that next waits on the communicator, calls its `run_ready()` or
    /// destroys it; then the call is complete as well, and further ones on it throw
    /// `hvd::peer_error`.
    auto operator co_await() {
        struct awaiter {
            request& self;
            bool await_ready() { return !self.call_ || self.call_->done(); }
            void await_suspend(std::coroutine_handle<> waiter) { self.call_->resume_later(waiter); }
            void await_resume() { self.collect(); }
        };
        return awaiter{*this};
    }

private:
    void collect() {
        const detail::shared<detail::queued> call = std::move(call_);
        call_ = {};
        if (!call) return;
        const std::exception_ptr failure = call->take_failure();
        call->run_ready();
        if (failure) std::rethrow_exception(failure);
    }

    void finish_quietly() noexcept {
        if (!call_) return;
        try {
            if (!call_->done()) call_->wait();
            if (auto failure = call_->take_failure()) call_->leave_unseen(failure);
        } catch (...) {
            call_->leave_unseen(std::current_exception());
        }
        call_ = {};
    }

    detail::shared<detail::queued> call_;
};

/// An asynchronous call with a result.
template <class T>
class [[nodiscard(
    "hvd: an asynchronous call is not complete until its result is waited for")]] result {
public:
    result() = default;
    result(request call, detail::shared<detail::counted_value<T>> value)
        : call_(std::move(call)), value_(std::move(value)) {}
    result(result&&) noexcept = default;
    result& operator=(result&&) noexcept = default;

    explicit operator bool() const noexcept { return bool(value_); }

    /// Looks once whether the call is complete.
    bool test() { return call_.test(); }

    /// Waits for the call and gives its result; the handle is empty afterwards.
    /// @throws hvd::usage_error if the result has been taken before.
    T wait() {
        if (!value_) throw usage_error(-1, "hvd: this result was taken before");
        call_.wait();
        const auto value = std::move(value_);
        return std::move(value->value);
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
    detail::shared<detail::counted_value<T>> value_;
};

}  // namespace v0
}  // namespace hvd
