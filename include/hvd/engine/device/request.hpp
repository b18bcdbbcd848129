// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include "../../execution/request.hpp"
#include "../core.hpp"
#include "work_watch.hpp"

namespace hvd::inline v0 {

/// A device tensor that was submitted to an engine. The host waits for it, or a stream does.
///
/// **Buffers** of the tensor stay untouched until it is complete. **Completion**: `wait()`, a
/// `test()` that is true, `co_await`, or the destructor, which waits as `wait()` does, and while an
/// exception unwinds for the communicator's `destructor_timeout` at most. After `wait(stream)` the
/// stream's later work comes after the result. Movable, and empty after a move.
/// @throws hvd::mismatch_error, hvd::usage_error and hvd::peer_error as an engine's other requests
/// do, hvd::nccl_error and hvd::cuda_error for failures. All but the first two end the engine.
/// @snippet tests/device/snippets.cpp engine_streams
class [[nodiscard(
    "hvd: a tensor is not complete until its request is waited for")]] named_device_request {
public:
    named_device_request() = default;
    explicit named_device_request(detail::shared<detail::device_tensor_call> call)
        : submitted_(call), call_(std::move(call)), is_open_(true) {}
    named_device_request(named_device_request&& other) noexcept
        : submitted_(std::move(other.submitted_)),
          call_(std::move(other.call_)),
          is_open_(std::exchange(other.is_open_, false)) {}
    named_device_request& operator=(named_device_request&& other) noexcept {
        if (this != &other) {
            finish();
            submitted_ = std::move(other.submitted_);
            call_ = std::move(other.call_);
            is_open_ = std::exchange(other.is_open_, false);
        }
        return *this;
    }
    ~named_device_request() { finish(); }

    /// True for a tensor that nobody has waited for.
    explicit operator bool() const noexcept {
        return bool(submitted_) || (is_watched() ? is_open_ : call_ && bool(call_->under_way));
    }

    /// Checks once if the tensor is complete. After a timeout it throws as `wait()` does.
    bool test() {
        if (!submitted_.test()) return false;
        if (is_watched()) {
            if (!call_->over->done()) return false;
            collect();
            return true;
        }
        bool complete = true;
        use([&](device_request& work) { complete = work.test(); });
        return complete;
    }

    /// The host waits until the result is there. It resumes coroutines whose tensors are complete.
    void wait() {
        submitted_.wait();
        if (is_watched()) return collect();
        use([&](device_request& work) {
            if (work.test()) return;
            core().wait(*call_);  // a callback of the engine may not wait for a device
            work.wait();
        });
        if (call_) call_->run_ready();
    }

    /// Makes later work of `stream` wait for the result. The host waits only until all ranks have
    /// submitted the tensor and its work is enqueued, and not for the work. A timeout of the
    /// device's communicator still holds, as for `device_request`.
    /// @throws hvd::usage_error for a stream that is being captured.
    void wait(device_stream stream) {
        submitted_.wait();
        if (is_watched() && call_->over->done()) return collect();
        use([&](device_request& work) {
            if (is_watched()) call_->watch->follow(*call_, stream);
            else work.wait(stream);
        });
        is_open_ = false;
    }

    /// As `request::then`: the function is called when the work is done or has failed, on a thread
    /// of the engine.
    /// @snippet tests/device/snippets.cpp engine_then
    template <class F>
        requires std::is_invocable_v<F&, const std::exception_ptr&>
    void then(F callback) {
        if (!*this) return detail::completion_callback::run(callback, nullptr);
        if (std::exchange(call_->has_callback, true))
            throw usage_error(-1, "hvd: this request has a callback of .then() already");
        const bool is_told = is_watched() || call_->watch->begin(*call_);
        if (!is_told && !submitted_) return call_->under_way.then(std::move(callback));
        // A tensor that fails before its work begins has its exception in `submitted_`.
        submitted_.then([call = call_, callback = std::move(callback),
                         is_told](const std::exception_ptr& failure) mutable {
            if (failure || !is_told) callback(failure);
            else call->over->then(std::move(callback));
        });
    }

    /// Resumes once the work is done, on the thread that next waits on the engine, calls its
    /// `run_ready()` or destroys it. Without an engine it waits at once.
    auto operator co_await() { return awaiter(*this); }

    /// The elements that came from each rank, one number for each, of an allgather or alltoall. It
    /// is empty before the tensor was waited for, and for other collectives.
    std::span<const std::size_t> counts() const noexcept {
        if (!call_ || submitted_) return {};
        return call_->counts;
    }

private:
    // It lives in the coroutine's frame.
    class awaiter {
    public:
        explicit awaiter(named_device_request& self)
            : self_(self), over_(self.watched_end()), inner_(over_.operator co_await()) {}
        awaiter(const awaiter&) = delete;
        awaiter& operator=(const awaiter&) = delete;

        bool await_ready() { return inner_.await_ready(); }
        void await_suspend(std::coroutine_handle<> coroutine) { inner_.await_suspend(coroutine); }
        void await_resume() {
            self_.wait();
            inner_.await_resume();
        }

    private:
        named_device_request& self_;
        request over_;  // empty if nobody watches the work: then there is nothing to wait for
        decltype(std::declval<request&>().operator co_await()) inner_;
    };

    detail::engine_core& core() const { return static_cast<detail::engine_core&>(*call_->owner); }
    bool is_watched() const noexcept { return call_ && call_->over; }

    request watched_end() {
        if (!call_ || (!is_watched() && !call_->watch->begin(*call_))) return request();
        return request(call_->over);
    }

    void collect() {
        if (!call_->over->done()) core().wait(*call_->over);  // it may refuse to
        request over(call_->over);
        over.wait();
        is_open_ = false;
    }

    // The engine may hold the call for a moment longer, but not its work. The destructors wait.
    void finish() noexcept {
        {
            const request first(std::move(submitted_));
        }
        if (is_watched() && is_open_) const request then(call_->over);
        else if (call_ && !is_watched()) const device_request then(std::move(call_->under_way));
        is_open_ = false;
    }

    // A failure of the work ends the engine on all ranks.
    template <class F>
    void use(F&& f) {
        if (!call_) return;
        try {
            f(call_->under_way);
        } catch (const usage_error&) {
            throw;
        } catch (const error&) {
            core().lose_devices(std::current_exception());
            throw;
        }
    }

    request submitted_;
    detail::shared<detail::device_tensor_call> call_;
    bool is_open_ = false;  // nobody has waited for a tensor that is watched
};

}  // namespace hvd::inline v0
