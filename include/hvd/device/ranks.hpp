// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "movements.hpp"
#include "plans.hpp"
#include "reductions.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

/// The members of a communicator for device tensors.
template <class Comm, class B, class Session>
class device_ranks : public device_reductions<Comm, B>,
                     public device_movements<Comm, B>,
                     public device_plans<Comm, B> {
public:
    using backend_type = B;

    device_ranks(device_ranks&&) noexcept = default;
    device_ranks& operator=(device_ranks&&) noexcept = default;

    /// Whether this rank is a member.
    explicit operator bool() const noexcept { return session_ != nullptr; }
    /// This rank's number; -1 when empty.
    int rank() const noexcept { return session_ == nullptr ? -1 : session_->rank(); }
    /// The number of ranks; 0 when empty.
    int size() const noexcept { return session_ == nullptr ? 0 : session_->size(); }
    /// The number of this rank's GPU.
    int device() const noexcept { return session_ == nullptr ? -1 : session_->device(); }

    /// Ends all calls under way; every further call throws `hvd::peer_error`, the peers' too.
    void abort() noexcept {
        if (session_ != nullptr) session_->give_up("abort()");
    }

protected:
    friend struct device_access;

    device_ranks() = default;
    explicit device_ranks(std::shared_ptr<Session> session) : session_(std::move(session)) {}

    Session& session() const { return *device_access::session_of(*this); }

    std::shared_ptr<Session> session_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
