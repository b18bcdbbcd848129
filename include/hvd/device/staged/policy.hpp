// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/concepts.hpp"
#include "../../core/memory.hpp"

namespace hvd {
inline namespace v0 {

/// Device tensors go through pinned memory of the host and the collectives of `Host`, in chunks:
/// while one is reduced the next comes down and the one before goes up. `communicator<staged<mpi>>`
/// needs no NCCL.
///
/// Reduces what `Host` reduces, callables included, and gives the same bits as `Host` does.
template <class Host>
struct staged {
    using space_type = device;
    using host_policy = Host;
    template <class T>
    static constexpr bool moves = transportable<T, Host>;
    template <class T, class Op>
    static constexpr bool reduces = reducible<T, Op, Host>;
};

/// Device tensors are handed to an MPI that takes them; reductions are staged, for MPI's own copy
/// the whole tensor to the host, and reduce there. Making the communicator checks that the MPI is
/// CUDA-aware.
template <class Host>
struct cuda_aware : staged<Host> {};

}  // namespace v0
}  // namespace hvd
