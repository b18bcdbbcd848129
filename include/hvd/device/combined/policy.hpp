// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../staged/policy.hpp"

namespace hvd::inline v0 {
namespace detail {

template <class Device, class Host>
class hierarchical_session;

}  // namespace detail

/// `Device` (nccl) moves tensors inside the nodes and `Host` (mpi) between them. A reduction leaves
/// each rank of a node its part; the rank reduces it with the ranks of the same number on the other
/// nodes, and then every rank gathers its node's parts.
///
/// Allreduce and broadcast work so if all nodes have equally many ranks. Everything else is staged.
/// A failure in one of the steps ends the communicator, since the nodes are then at different
/// steps.
template <class Device, class Host>
struct hierarchical : staged<Host>, detail::own_options_among<Device> {
    static_assert(device_backend<Device>,
                  "hvd: hierarchical<…> takes a backend of devices, then one of the host: "
                  "hierarchical<hvd::nccl, hvd::mpi>");
    using session_type = detail::hierarchical_session<Device, Host>;
    template <class T, class Op>
    static constexpr bool reduces = reducible<T, Op, Device> && reducible<T, Op, Host>;
};

}  // namespace hvd::inline v0
