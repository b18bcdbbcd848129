// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../ranks.hpp"
#include "policy.hpp"
#include "session.hpp"

namespace hvd::inline v0 {
namespace detail {

// A policy that moves device tensors with the help of the host.
template <class B>
concept host_assisted = device_backend<B> && requires { typename B::host_policy; };

}  // namespace detail

/// Ranks whose device tensors move through the host: `communicator<staged<mpi>> gpus(world)`, and
/// also `cuda_aware<mpi>` and `hierarchical<nccl, mpi>`.
///
/// It has all collectives of `communicator<nccl>`, with the same results. Ranks compare every call,
/// as the host's communicator does. They do not compare the calls of NCCL inside a node, or those
/// that `cuda_aware` hands to MPI, which also have no timeout once MPI has them. An asynchronous
/// call has been through the host when it returns; its request is for the last copies to the GPU.
/// **Threads**: one calling thread at a time.
/// @snippet tests/device/snippets.cpp staged
template <class B>
    requires detail::host_assisted<B>
class communicator<B> : public detail::device_ranks<communicator<B>, B> {
    using session_type = typename B::session_type;
    using base = detail::device_ranks<communicator<B>, B>;
    using host_type = communicator<typename B::host_policy>;

public:
    /// Makes an empty communicator, of which this rank is not a member.
    communicator() = default;

    /// Takes the ranks of `bootstrap`, with the current device of each. **Collective**.
    /// @throws hvd::cuda_error, hvd::usage_error if the host's backend can't do it, hvd::peer_error
    /// on the others.
    explicit communicator(host_type& bootstrap, const communicator_options& options = {})
        : base(session_type::make(bootstrap, options), place_of(bootstrap)) {}

    /// The same, with options for the backend that moves tensors inside the nodes.
    /// @snippet tests/device/snippets.cpp nccl_options
    template <class Policy = B>
        requires detail::has_own_options<Policy>
    communicator(host_type& bootstrap, const communicator_options& options,
                 const typename Policy::own_options& own)
        : base(session_type::make(bootstrap, options, own), place_of(bootstrap)) {}

    /// Makes one communicator for each colour, its ranks ordered by key, then by rank. It is empty
    /// for a negative colour.
    /// **Collective**.
    [[nodiscard("hvd: a communicator ends with its object")]] communicator split(int color,
                                                                                 int key = 0) {
        session_type& s = this->session();
        s.refuse_if_broken("split");
        const typename session_type::inside turn(s);
        auto part = s.host().split(color, key);
        if (!part) return {};
        if constexpr (detail::has_own_options<B>)
            return communicator(part, s.options(), s.own_options());
        else return communicator(part, s.options());
    }
};

}  // namespace hvd::inline v0
