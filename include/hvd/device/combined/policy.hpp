// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../staged/policy.hpp"

namespace hvd {
inline namespace v0 {

/// `Device` (nccl) inside the nodes and `Host` (mpi) between them: a reduction leaves each rank of
/// a node its part, which it reduces with the ranks of the same number on the other nodes, and then
/// every rank gathers its node's parts. Allreduce and broadcast work so where all nodes have as
/// many ranks; everything else is staged. A failure in one of the steps ends the communicator: the
/// nodes are no longer at the same one.
template <class Device, class Host>
struct hierarchical : staged<Host> {
    template <class T, class Op>
    static constexpr bool reduces = reducible<T, Op, Device> && reducible<T, Op, Host>;
};

}  // namespace v0
}  // namespace hvd
