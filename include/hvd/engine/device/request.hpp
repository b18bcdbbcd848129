// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include "../../execution/request.hpp"
#include "../core.hpp"
#include "tensor_call.hpp"

namespace hvd {
inline namespace v0 {

/// A device tensor that was submitted to an engine. The host waits for it, or a stream does.
///
/// **Buffers** of the tensor stay untouched until it is complete. **Completion**: `wait()`, a
/// `test()` that is true, or the destructor, which waits until the communicator's
/// `destructor_deadline` at most. After `wait(stream)` the stream's later work comes after the
/// result. Movable, and empty after a move.
/// @throws hvd::mismatch_error, hvd::usage_error and hvd::peer_error as an engine's other requests
/// do, hvd::nccl_error and hvd::cuda_error for failures. All but the first two end the engine.
/// @snippet tests/device/snippets.cpp engine_streams
class [[nodiscard(
    "hvd: a tensor is not complete until its request is waited for")]] named_device_request {
public:
    named_device_request() = default;
    explicit named_device_request(detail::shared<detail::device_tensor_call> call)
        : submitted_(call), call_(std::move(call)) {}
    named_device_request(named_device_request&&) noexcept = default;
    named_device_request& operator=(named_device_request&& other) noexcept {
        if (this != &other) {
            finish();
            submitted_ = std::move(other.submitted_);
            call_ = std::move(other.call_);
        }
        return *this;
    }
    ~named_device_request() { finish(); }

    /// True for a tensor that nobody has waited for.
    explicit operator bool() const noexcept {
        return bool(submitted_) || (call_ && bool(call_->under_way));
    }

    /// Checks once if the tensor is complete. After a deadline it throws as `wait()` does.
    bool test() {
        if (!submitted_.test()) return false;
        bool complete = true;
        use([&](device_request& work) { complete = work.test(); });
        return complete;
    }

    /// The host waits until the result is there.
    void wait() {
        submitted_.wait();
        use([](device_request& work) { work.wait(); });
    }

    /// Makes later work of `stream` wait for the result. The host waits only until all ranks have
    /// submitted the tensor and its work is enqueued, and not for the work. A deadline of the
    /// device's communicator still holds, as for `device_request`.
    /// @throws hvd::usage_error for a stream that is being captured.
    void wait(device_stream stream) {
        submitted_.wait();
        use([&](device_request& work) { work.wait(stream); });
    }

    /// The elements that came from each rank, one number for each, of an allgather or alltoall. It
    /// is empty before the tensor was waited for, and for other collectives.
    std::span<const std::size_t> counts() const noexcept {
        if (!call_ || submitted_) return {};
        return call_->counts;
    }

private:
    // The engine may hold the call for a moment longer, but not its work. The destructors wait.
    void finish() noexcept {
        {
            const request first(std::move(submitted_));
        }
        if (call_) const device_request then(std::move(call_->under_way));
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
            static_cast<detail::engine_core&>(*call_->owner).lose_devices(std::current_exception());
            throw;
        }
    }

    request submitted_;
    detail::shared<detail::device_tensor_call> call_;
};

}  // namespace v0
}  // namespace hvd
