// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../ranks.hpp"
#include "policy.hpp"
#include "session.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A policy that moves device tensors with the help of the host.
template <class B>
concept host_assisted = device_backend<B> && requires { typename B::host_policy; };

}  // namespace detail

/// Ranks with device tensors that are moved through the host: `communicator<staged<mpi>>
/// gpus(world)`; also `cuda_aware<mpi>` and `hierarchical<nccl, mpi>`.
///
/// All collectives of `communicator<nccl>`, with the same results. Ranks compare every call, as the
/// host's communicator does; not compared is what NCCL moves inside a node, and what `cuda_aware`
/// moves, which also knows no deadline once MPI has it. An asynchronous call has been through the
/// host when it returns; its request is for the last copies to the GPU. **Threads**: one calling
/// thread at a time.
/// @snippet tests/device/snippets.cpp staged
template <class B>
    requires detail::host_assisted<B>
class communicator<B> : public detail::device_ranks<communicator<B>, B> {
    using session_type = typename B::session_type;
    using base = detail::device_ranks<communicator<B>, B>;
    using host_type = communicator<typename B::host_policy>;

public:
    /// Empty: a communicator that this rank is not a member of.
    communicator() = default;

    /// The ranks of `bootstrap`, with the device that is current on each. **Collective**.
    /// @throws hvd::cuda_error, hvd::usage_error where the host's backend can't do it,
    /// hvd::peer_error on the others.
    explicit communicator(host_type& bootstrap, const communicator_options& options = {})
        : base(session_type::make(bootstrap, options), place_of(bootstrap)) {}

    /// One communicator for each colour, its ranks ordered by key, then by rank; empty for a
    /// negative colour.
    /// **Collective**.
    communicator split(int color, int key = 0) {
        session_type& s = this->session();
        s.refuse_if_broken("split");
        auto part = s.host().split(color, key);
        return part ? communicator(part, s.options()) : communicator();
    }
};

}  // namespace v0
}  // namespace hvd
