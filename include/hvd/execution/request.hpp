// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <utility>

#include "progress.hpp"
#include "wait_all.hpp"

namespace hvd::inline v0 {
/// An asynchronous call that is under way. Its owner is responsible for its completion. Horovod:
/// the handles of `allreduce_async`.
///
/// **Buffers** of the call stay untouched until it is complete. **Completion**: `wait()`, a
/// `test()` that is true, `co_await`, or the destructor. The destructor waits as `wait()` does;
/// while an exception unwinds it waits for the communicator's `destructor_timeout` at most, and
/// then the communicator is given up. Assigning to a request waits as `wait()` does. The timeout of
/// the call counts from its turn: the calls that were made before it are complete. Without a
/// progress thread it counts from the first `wait()` or `test()` that drives it. It is movable.
/// After a move it is empty, and complete.
/// **Threads**: one thread at a time uses it, the communicator's.
/// @throws from `wait()`, `test()` and `co_await` the exception of the call, once.
class [[nodiscard(
    "hvd: an asynchronous call is not complete until its request is waited for")]] request {
public:
    request() = default;
    explicit request(detail::shared<detail::queued> call) : call_(std::move(call)) {}
    request(request&&) noexcept = default;
    request& operator=(request&& other) noexcept {
        if (this != &other) {
            finish_quietly(&detail::queued::wait);
            call_ = std::move(other.call_);
        }
        return *this;
    }
    ~request() { finish_quietly(&detail::queued::wait_at_end); }

    /// True while it holds a call that nobody has waited for to its end.
    explicit operator bool() const noexcept { return bool(call_); }

    /// Checks once if the call is complete. Then the request is empty.
    bool test() {
        if (!call_) return true;
        if (!call_->done() && !call_->test()) return false;
        collect();
        return true;
    }

    /// Waits until the call is complete, and resumes coroutines whose calls are. If no progress
    /// thread runs (MPI below MULTIPLE), ranks must wait for calls of several communicators in one
    /// order.
    void wait() {
        if (!call_) return;
        if (!call_->done()) call_->wait();
        collect();
    }

    /// Waits until the call is complete, or for this time. It returns false after the time: the
    /// call goes on, and the communicator is not given up. A time of 0 checks once, as `test()`
    /// does.
    /// @snippet tests/docs/snippets.cpp wait_for
    bool wait_for(time_span time) {
        return detail::test_for(time, [this] { return test(); });
    }

    /// Gives a function that is called once, when the call is complete: with null, or with the
    /// exception of the call, which `wait()` throws as well. It is called before `wait()` returns,
    /// and now if the call is complete.
    ///
    /// **Threads**: it runs on the thread that completes the call: the progress thread, or, where
    /// there is none, the one that is in `wait()` or `test()`; an engine's where the call is an
    /// engine's. It makes no calls on the communicator and waits for none, since the thread would
    /// wait for itself: these throw. Calls of other communicators hold the queue up.
    /// **Exceptions** that leave it go to the message sink. A request may be dropped after its
    /// callback has got the failure: no later call throws that then.
    /// @throws hvd::usage_error for a second callback of one request.
    /// @snippet tests/docs/snippets.cpp then
    template <class F>
        requires std::is_invocable_v<F&, const std::exception_ptr&>
    void then(F callback) {
        if (call_) call_->then(std::move(callback));
        else detail::completion_callback::run(callback, nullptr);
    }

    /// Resumes on the thread that next waits on the communicator, calls its `run_ready()` or
    /// destroys it. In the last case the call is complete as well, and further calls on the
    /// communicator throw `hvd::peer_error`. A coroutine that is destroyed before is forgotten.
    auto operator co_await() { return awaiter(*this); }

private:
    // It lives in the coroutine's frame.
    class awaiter : detail::waiter {
    public:
        explicit awaiter(request& self) : self_(self) {}
        awaiter(const awaiter&) = delete;
        awaiter& operator=(const awaiter&) = delete;
        ~awaiter() {
            if (kept_) kept_->forget(*this);
        }

        bool await_ready() { return !self_.call_ || self_.call_->done(); }
        void await_suspend(std::coroutine_handle<> coroutine) {
            handle = coroutine;
            kept_ = self_.call_;
            kept_->resume_later(*this);
        }
        void await_resume() {
            kept_ = {};
            self_.collect();
        }

    private:
        request& self_;
        detail::shared<detail::queued> kept_;  // kept while the coroutine waits
    };

    void collect() {
        const detail::shared<detail::queued> call = std::move(call_);
        call_ = {};
        if (!call) return;
        const std::exception_ptr failure = call->take_failure();
        try {
            call->run_ready();
        } catch (...) {  // thrown by a coroutine
            if (failure) call->leave_unseen(failure);
            throw;
        }
        if (failure) std::rethrow_exception(failure);
    }

    void finish_quietly(void (detail::queued::*end)()) noexcept {
        if (!call_) return;
        try {
            if (!call_->done()) ((*call_).*end)();
            if (auto failure = call_->take_failure(); failure && !call_->is_told())
                call_->leave_unseen(failure);
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
    explicit result(detail::shared<detail::queued_value<T>> call) : call_(call), value_(call) {}
    result(result&&) noexcept = default;
    result& operator=(result&&) noexcept = default;

    /// True while it holds a call under way, or a result that nobody has taken.
    explicit operator bool() const noexcept { return bool(value_); }

    /// Checks once if the call is complete. The handle is empty if the call failed, and has the
    /// result if not.
    bool test() {
        bool done = false;
        collecting([&] { done = call_.test(); });
        return done;
    }

    /// Waits as `request::wait_for` does. After true the result is there: `wait()` takes it.
    bool wait_for(time_span time) {
        return detail::test_for(time, [this] { return test(); });
    }

    /// As `request::then`. The result is there after `wait()`.
    template <class F>
        requires std::is_invocable_v<F&, const std::exception_ptr&>
    void then(F callback) {
        call_.then(std::move(callback));
    }

    /// Waits for the call and returns its result. The handle is empty afterwards, also if the call
    /// failed.
    /// @throws hvd::usage_error if the result has been taken before, or there is none.
    T wait() {
        require();
        collecting([&] { call_.wait(); });
        return std::move(take()->value);
    }

    auto operator co_await() {
        struct awaiter {
            result& self;
            decltype(std::declval<request&>().operator co_await()) inner;
            bool await_ready() { return inner.await_ready(); }
            void await_suspend(std::coroutine_handle<> waiter) { inner.await_suspend(waiter); }
            T await_resume() {
                const auto value = self.take();
                inner.await_resume();
                return std::move(value->value);
            }
        };
        return awaiter{*this, call_.operator co_await()};
    }

private:
    void require() const {
        if (!value_) throw usage_error(-1, "hvd: this result was taken before");
    }
    detail::shared<detail::queued_value<T>> take() {
        require();
        return std::move(value_);
    }

    // Runs f, which may end the call. A failure of the call leaves no result. The result of a call
    // that f was only refused to look at stays.
    template <class F>
    void collecting(F f) {
        try {
            f();
        } catch (...) {
            if (!call_) value_ = {};
            throw;
        }
    }

    request call_;
    detail::shared<detail::queued_value<T>> value_;
};

}  // namespace hvd::inline v0
