// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>

#include "../execution/wait_all.hpp"
#include "call.hpp"
#include "session.hpp"

namespace hvd::inline v0 {
namespace detail {

struct device_access;

}  // namespace detail

/// A call on device tensors that is under way. The host waits for it, or a stream does.
///
/// **Buffers** of the call stay untouched until it is complete. **Completion**: `wait()`, a
/// `test()` that is true, or the destructor. The destructor waits as `wait()` does; while an
/// exception unwinds it waits for the communicator's `destructor_timeout` at most, and then the
/// communicator is given up. After `wait(stream)` the stream's later work comes after the call. The
/// request is empty, and complete, for a plan that was captured into a CUDA graph.
/// @throws hvd::peer_error for late and dead peers, hvd::nccl_error and hvd::cuda_error for
/// failures.
/// @snippet tests/device/snippets.cpp device_request
class [[nodiscard(
    "hvd: an asynchronous call is not complete until its request is waited for")]] device_request {
public:
    device_request() = default;
    device_request(std::shared_ptr<detail::device_session> session, detail::cuda_event done,
                   const char* label, detail::time_point limit,
                   std::shared_ptr<const void> used = {})
        : session_(std::move(session)),
          done_(std::move(done)),
          label_(label),
          limit_(limit),
          used_(std::move(used)),
          open_(detail::open_call::begun()) {}
    device_request(device_request&&) noexcept = default;
    device_request& operator=(device_request&& other) noexcept {
        if (this != &other) {
            finish_quietly(limit_);
            session_ = std::move(other.session_);
            done_ = std::move(other.done_);
            label_ = other.label_;
            limit_ = other.limit_;
            used_ = std::move(other.used_);
            watched_ = std::move(other.watched_);
            open_ = std::move(other.open_);
        }
        return *this;
    }
    ~device_request() {
        if (session_ != nullptr)
            finish_quietly(std::uncaught_exceptions() > 0 ? session_->destructor_limit()
                                                          : detail::never);
    }

    /// True for a call that nobody has waited for.
    explicit operator bool() const noexcept { return session_ != nullptr; }

    /// Checks once if the call is complete. After its timeout it throws as `wait()` does.
    bool test() {
        if (session_ == nullptr) return true;
        session_->refuse_in_callback();
        if (!watched_ && !session_->test(done_, label_, limit_)) return false;
        if (watched_ && !test_watched()) return false;
        session_ = nullptr;
        watched_ = nullptr;
        open_.end();
        return true;
    }

    /// The host waits until the call is complete, or for this time. It returns false after the
    /// time: the call goes on.
    bool wait_for(time_span time) {
        return detail::test_for(time, [this] { return test(); });
    }

    /// The host waits, at most until the call's timeout.
    void wait() {
        if (session_ == nullptr) return;
        session_->refuse_in_callback();
        const auto open = std::move(open_);
        const auto session = std::exchange(session_, nullptr);
        if (watched_)
            end(*watched_, *session, [&] { session->wait(watched_->done, label_, limit_); });
        else session->wait(done_, label_, limit_);
    }

    /// Gives a function that is called once, when the call is complete: with null, or with the
    /// exception of the call, which `wait()` throws as well. It is called before `wait()` returns,
    /// and now if the call is complete. After `wait(stream)` it is called all the same.
    ///
    /// **Threads**: it runs on the thread that finds the call complete: one of the communicator,
    /// which looks every millisecond, or the one that is in `wait()` or `test()`. It makes no calls
    /// on the communicator and waits for none: these throw. The call's timeout holds from then on
    /// though nobody waits. **Exceptions** that leave it go to the message sink.
    /// @throws hvd::usage_error for a second callback of one request.
    /// @snippet tests/device/snippets.cpp device_then
    template <class F>
        requires std::is_invocable_v<F&, const std::exception_ptr&>
    void then(F callback) {
        if (session_ == nullptr) return detail::completion_callback::run(callback, nullptr);
        if (!watched_) watched_ = session_->watch(done_, label_, limit_);
        watched_->then(std::move(callback), session_->rank());
    }

    /// Makes later work of `stream` wait. The host goes on, and the request is empty. The call's
    /// timeout still holds: past it, or if a rank fails, a thread gives the communicator up, so
    /// that the stream goes on, and the next call throws the reason. A call without a timeout is
    /// not watched.
    /// @throws hvd::usage_error for a stream that is being captured; hvd::peer_error if the
    /// communicator was given up.
    void wait(device_stream stream) {
        if (session_ == nullptr) return;
        if (watched_) session_->hand_over(*watched_, open_, stream, label_);
        else session_->hand_over(done_, open_, stream, label_, limit_);
        session_ = nullptr;
        watched_ = nullptr;
        open_.end();
    }

private:
    friend struct detail::device_access;

    // Throws what the callback got.
    template <class F>
    static void end(detail::watched_call& call, const detail::device_session& session, F wait) {
        std::exception_ptr failure;
        try {
            wait();
        } catch (...) {
            failure = std::current_exception();
        }
        failure = call.end(&session, std::move(failure));
        if (failure) std::rethrow_exception(failure);
    }
    bool test_watched() {
        try {
            if (!session_->test(watched_->done, label_, limit_)) return false;
        } catch (...) {
            end(*watched_, *session_, [] { throw; });
        }
        end(*watched_, *session_, [] {});
        return true;
    }

    void finish_quietly(detail::time_point limit) noexcept {
        if (limit < limit_) limit_ = limit;
        const auto session = session_;
        try {
            wait();
        } catch (...) {
            session->give_up(
                detail::what_of(std::current_exception()));  // its next call throws the reason
        }
    }

    std::shared_ptr<detail::device_session> session_;
    detail::cuda_event done_;
    const char* label_ = "";
    detail::time_point limit_ = detail::never;
    std::shared_ptr<const void> used_;  // memory of the call
    // If it has a callback: it has the event, and keeps the failure while its catcher reads it.
    std::shared_ptr<detail::watched_call> watched_;
    detail::open_call open_;
};

namespace detail {

// Begins what `enqueue(stream, limit)` enqueues.
template <class F>
device_request begin_call(const std::shared_ptr<device_session>& session, const call_label& label,
                          device_stream stream, time_limit timeout, F&& enqueue) {
    const device_session::inside turn(*session);
    const current_device here(session->device(), session->rank());
    if (session->is_captured(stream))
        throw usage_error(session->rank(),
                          text("hvd: ", label.c_str(), " on rank ", session->rank(),
                               ": its stream is being captured into a graph, which takes only "
                               "plans: their ranks agreed on it"));
    const time_point limit = session->limit_for(timeout);
    const cudaStream_t where = session->enter(stream);
    enqueue(where, limit);
    session->leave(stream);
    return {session, session->mark(where), label.c_str(), limit, label.kept()};
}

// The peers enter a call that this rank refuses, and would wait for it.
[[gnu::cold]] inline void post_refusal(device_session& session, collective kind, const message& why,
                                       time_point limit) {
    call_header mine;
    mine.kind = kind;
    mine.refuse(why);
    const device_session::inside turn(session);
    try {
        session.post_refusal(mine, limit);
    } catch (const error&) {  // the reason is thrown even if they could not be told
    }
}

// Throws if a tensor of this rank is in memory of the host. If the peers compare calls, they are
// told.
[[gnu::cold]] inline void refuse_host_memory(device_session& session,
                                             std::span<const collective_call> calls,
                                             const char* label, bool tells, time_point limit) {
    for (const collective_call& call : calls) {
        const message found =
            reason_to_refuse(call, session.rank(), session.size(), session.device());
        if (found.empty()) continue;
        const message why = text("hvd: ", label, " on rank ", session.rank(), ": ", found);
        if (tells) post_refusal(session, call.entry.kind, why, limit);
        throw usage_error(session.rank(), why);
    }
}

// Enqueues the calls. Backends that compare calls look at the places of the tensors first. With
// others, whose calls take less time than such a look, this is done after a failure.
inline void enqueue_calls(device_session& session, std::span<const collective_call> calls,
                          const char* label, cudaStream_t stream, time_point limit) {
    if (!calls.empty() && session.compares(calls.front().entry.kind))
        refuse_host_memory(session, calls, label, true, limit);
    try {
        session.enqueue(calls, label, stream, limit);
    } catch (const library_error&) {
        refuse_host_memory(session, calls, label, false, limit);
        throw;
    }
}

// Begins the calls as one.
inline device_request start(const std::shared_ptr<device_session>& session,
                            std::span<const collective_call> calls, const call_label& label,
                            device_stream stream, time_limit timeout) {
    return begin_call(session, label, stream, timeout, [&](cudaStream_t where, time_point limit) {
        enqueue_calls(*session, calls, label.c_str(), where, limit);
    });
}

}  // namespace detail
}  // namespace hvd::inline v0
