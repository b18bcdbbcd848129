// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../backend/concept.hpp"
#include "../../core/concepts.hpp"
#include "../../core/memory.hpp"

namespace hvd::inline v0 {
namespace detail {

template <class Host>
class staged_session;
template <class Host>
class cuda_aware_session;

}  // namespace detail

/// Device tensors go in chunks through pinned memory of the host and the collectives of `Host`.
/// While one chunk is reduced, the next is copied to the host and the previous one to the device.
/// `communicator<staged<mpi>>` needs no NCCL.
///
/// It reduces as `Host` does, callables included, and gives the same bits.
template <class Host>
struct staged {
    static_assert(detail::is_host_backend<Host>,
                  "hvd: staged<…> takes a backend of the host: hvd::mpi, hvd::threads or "
                  "hvd::tcp");
    using space_type = device;
    using session_type = detail::staged_session<Host>;
    using host_policy = Host;
    template <class T>
    static constexpr bool moves = transportable<T, Host>;
    template <class T, class Op>
    static constexpr bool reduces = reducible<T, Op, Host>;
};

/// Device tensors are handed to an MPI that takes them. Reductions are staged: MPI itself would
/// copy the whole tensor to the host and reduce it there. Making the communicator checks that the
/// MPI is CUDA-aware.
template <class Host>
struct cuda_aware : staged<Host> {
    using session_type = detail::cuda_aware_session<Host>;
};

}  // namespace hvd::inline v0
