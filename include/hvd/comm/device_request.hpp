// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <span>

#include "../backend/nccl_session.hpp"

namespace hvd {
inline namespace v0 {

/// What a call on device tensors may be told beyond its arguments.
struct device_options {
    std::string_view name = {};             ///< for people
    time_span deadline = {};                ///< for this call; 0: the communicator's
    cudaStream_t stream = nullptr;          ///< where it runs; null: the communicator's own stream
    std::span<const std::size_t> counts = {};  ///< each rank's elements, alike on all ranks; empty: equal ones
};

/// What a reduction of device tensors may be told beyond its arguments.
struct device_reduce_options {
    std::string_view name = {};             ///< for people
    double prescale = 1;                    ///< each rank's tensor is multiplied by it before the reduction
    double postscale = 1;                   ///< the result is multiplied by it
    time_span deadline = {};                ///< for this call; 0: the communicator's
    cudaStream_t stream = nullptr;          ///< where it runs; null: the communicator's own stream
    std::span<const std::size_t> counts = {};  ///< of reduce_scatter: each rank's elements; empty: equal ones
};

/// A call on device tensors that is under way: the host waits for it, or a stream does.
///
/// **Buffers** of the call stay untouched until it is complete. **Completion**: `wait()`, a `test()` that is
/// true, or the destructor, which waits; after `wait(stream)` the stream's later work comes after the call.
/// @throws hvd::peer_error for late and dead peers, hvd::nccl_error and hvd::cuda_error for failures.
class [[nodiscard("hvd: an asynchronous call is not complete until its request is waited for")]] device_request {
public:
    device_request() = default;
    device_request(std::shared_ptr<detail::nccl_session> session, detail::cuda_event done, const char* label, detail::time_point limit)
        : session_(std::move(session)), done_(std::move(done)), label_(label), limit_(limit) {}
    device_request(device_request&&) noexcept = default;
    device_request& operator=(device_request&& other) noexcept {
        if (this != &other) {
            finish_quietly();
            session_ = std::move(other.session_);
            done_ = std::move(other.done_);
            label_ = other.label_;
            limit_ = other.limit_;
        }
        return *this;
    }
    ~device_request() { finish_quietly(); }

    /// Whether it stands for a call that nobody has waited for.
    explicit operator bool() const noexcept { return session_ != nullptr; }

    /// Looks once whether the call is complete.
    bool test() {
        if (session_ == nullptr) return true;
        if (!session_->test(done_, label_)) return false;
        session_ = nullptr;
        return true;
    }

    /// The host waits, at most until the call's deadline.
    void wait() {
        if (const auto session = std::exchange(session_, nullptr)) session->wait(done_, label_, limit_);
    }

    /// Later work of `stream` waits; the host goes on, and the request is done with.
    void wait(cudaStream_t stream) {
        if (const auto session = std::exchange(session_, nullptr)) done_.make_wait(stream, session->rank());
    }

private:
    void finish_quietly() noexcept {
        try {
            wait();
        } catch (...) {  // the communicator is given up: its next call says why
        }
    }

    std::shared_ptr<detail::nccl_session> session_;
    detail::cuda_event done_;
    const char* label_ = "";
    detail::time_point limit_ = detail::never;
};

}  // namespace v0
}  // namespace hvd
