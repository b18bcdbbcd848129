// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "session.hpp"

namespace hvd::inline v0 {

/// Memory of the user that a communicator has registered with NCCL. The registration ends with this
/// object, or with the communicator. It is empty after a move.
/// @snippet tests/device/snippets.cpp register_memory
class [[nodiscard("hvd: the registration ends with its object")]] device_registration {
public:
    device_registration() = default;
    device_registration(const std::shared_ptr<detail::nccl_session>& session, void* handle)
        : session_(session), handle_(handle) {}
    device_registration(device_registration&& other) noexcept
        : session_(std::move(other.session_)), handle_(std::exchange(other.handle_, nullptr)) {}
    device_registration& operator=(device_registration&& other) noexcept {
        session_.swap(other.session_);
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~device_registration() {
        if (const auto session = session_.lock()) session->deregister(handle_);
    }

    /// True if NCCL has the memory. A rank that is alone registers nothing.
    explicit operator bool() const noexcept { return handle_ != nullptr; }

private:
    std::weak_ptr<detail::nccl_session> session_;
    void* handle_ = nullptr;
};

}  // namespace hvd::inline v0
