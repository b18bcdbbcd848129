// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <initializer_list>

#include "../backend/concept.hpp"
#include "../comm/topology.hpp"
#include "movements.hpp"
#include "plans.hpp"
#include "reductions.hpp"

namespace hvd::inline v0::detail {

/// The members of a communicator for device tensors, beside its constructors and `split`.
template <class Comm, class B>
class device_ranks : public device_reductions<Comm, B>,
                     public device_movements<Comm, B>,
                     public device_plans<Comm, B>,
                     public placed_rank<Comm> {
    static_assert(device_backend<B>);
    using session_type = typename B::session_type;

public:
    using backend_type = B;

    device_ranks(device_ranks&&) noexcept = default;
    device_ranks& operator=(device_ranks&&) noexcept = default;

    /// True if this rank is a member.
    explicit operator bool() const noexcept { return session_ != nullptr; }
    /// This rank's number; -1 if empty.
    int rank() const noexcept { return session_ == nullptr ? -1 : session_->rank(); }
    /// The number of ranks; 0 if empty.
    int size() const noexcept { return session_ == nullptr ? 0 : session_->size(); }
    /// The number of this rank's GPU.
    int device() const noexcept { return session_ == nullptr ? -1 : session_->device(); }

    /// The communicator's own stream, on which calls run that are given none. It does not wait for
    /// the default streams (cudaStreamNonBlocking).
    cudaStream_t stream() const { return session().own_stream(); }

    /// Makes a communicator of the ranks of this node, in order. **Collective**, with no call under
    /// way.
    Comm local() {
        session();
        return self().split(this->topology_.local.front(), rank());
    }

    /// Makes a communicator of the ranks with this local rank, one of each node that has it.
    /// **Collective**, with no call under way.
    Comm cross() {
        session();
        return self().split(this->topology_.local_rank, rank());
    }

    /// Makes a communicator of the given ranks, in ascending order. It is empty on all others.
    /// **Collective**: all ranks of this communicator, with the same list and no call under way.
    /// Roots of the result are its own ranks.
    /// @throws hvd::usage_error for a rank that does not exist or occurs twice, hvd::mismatch_error
    /// for different lists.
    Comm subset(std::span<const int> ranks) {
        session_type& own = session();
        const std::vector<int> members = agree_on_subset(own, ranks, own.limit_for({}));
        return self().split(position_of(rank(), members) < 0 ? -1 : 0, rank());
    }
    Comm subset(std::initializer_list<int> ranks) {
        return subset(std::span<const int>(ranks.begin(), ranks.size()));
    }

    /// Ends all calls under way. Every further call throws `hvd::peer_error`, also on the peers.
    /// **Threads**: any. Where the host moves tensors, it waits for the call of another thread.
    void abort() noexcept {
        if (session_ != nullptr) session_->abort_calls();
    }

    /// True once the communicator refuses all calls. **Threads**: any.
    bool is_given_up() const noexcept { return session_ != nullptr && session_->broken(); }

protected:
    friend struct device_access;

    device_ranks() = default;
    device_ranks(std::shared_ptr<session_type> session, topology place)
        : placed_rank<Comm>(std::move(place)), session_(std::move(session)) {
        static_assert(std::derived_from<session_type, device_session>);
    }

    Comm& self() { return static_cast<Comm&>(*this); }
    session_type& session() const { return *device_access::session_of(*this); }

    std::shared_ptr<session_type> session_;
};

}  // namespace hvd::inline v0::detail
