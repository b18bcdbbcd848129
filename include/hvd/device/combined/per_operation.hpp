// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../comm/communicator.hpp"

namespace hvd {
inline namespace v0 {

/// Combines a backend for each kind of collective into one type. Horovod's
/// HOROVOD_GPU_ALLREDUCE=NCCL, HOROVOD_GPU_ALLGATHER=MPI and HOROVOD_GPU_BROADCAST=MPI are
/// `per_operation<nccl, staged<mpi>, staged<mpi>>`.
template <class Allreduce, class Allgather, class Broadcast>
struct per_operation {};

namespace detail {

// The communicator of one backend, made from any other.
template <class Backend>
class part_of_operations : public communicator<Backend> {
public:
    part_of_operations() = default;
    template <class Bootstrap>
    part_of_operations(communicator<Bootstrap>& bootstrap, const communicator_options& options)
        : communicator<Backend>(made(bootstrap, options)) {}

private:
    // If the other ranks have the same backend, their communicator is split.
    template <class Bootstrap>
    static communicator<Backend> made(communicator<Bootstrap>& bootstrap,
                                      const communicator_options& options) {
        if constexpr (std::is_same_v<Bootstrap, Backend>)
            return bootstrap.split(0, bootstrap.rank());
        else return communicator<Backend>(bootstrap, options);
    }
};

// Stands for a backend that another parameter already named.
template <int>
struct no_part {
    no_part() = default;
    template <class Bootstrap>
    no_part(communicator<Bootstrap>&, const communicator_options&) {}
};

template <int Place, class Backend, class... Before>
using part_unless_among = std::conditional_t<(std::is_same_v<Backend, Before> || ...),
                                             no_part<Place>, part_of_operations<Backend>>;

}  // namespace detail

/// Has one communicator of the same ranks for each of the backends. The backend of a collective
/// decides which memory and which elements it takes.
///
/// allreduce, reduce and reduce_scatter use the first backend. allgather, gather, scatter and
/// alltoall use the second. broadcast and barrier use the third. Their `_async` and `plan_` forms
/// do the same. Options, results, errors and the order of calls are those of the backend:
/// asynchronous calls of different backends may overtake each other.
/// @snippet tests/device/snippets.cpp per_operation
template <class Allreduce, class Allgather, class Broadcast>
class communicator<per_operation<Allreduce, Allgather, Broadcast>>
    : detail::part_of_operations<Allreduce>,
      detail::part_unless_among<1, Allgather, Allreduce>,
      detail::part_unless_among<2, Broadcast, Allreduce, Allgather> {
    using reducing = detail::part_of_operations<Allreduce>;
    using gathering = detail::part_of_operations<Allgather>;
    using broadcasting = detail::part_of_operations<Broadcast>;

public:
    using backend_type = per_operation<Allreduce, Allgather, Broadcast>;

    /// Makes an empty communicator, of which this rank is not a member.
    communicator() = default;

    /// Takes the ranks of `bootstrap`, and makes a communicator for each backend. **Collective**.
    template <class Bootstrap>
    explicit communicator(communicator<Bootstrap>& bootstrap,
                          const communicator_options& options = {})
        : reducing(bootstrap, options),
          detail::part_unless_among<1, Allgather, Allreduce>(bootstrap, options),
          detail::part_unless_among<2, Broadcast, Allreduce, Allgather>(bootstrap, options) {}

    using reducing::operator bool;
    using reducing::rank;
    using reducing::size;

    using reducing::allreduce;
    using reducing::allreduce_async;
    using reducing::plan_allreduce;
    using reducing::plan_reduce_scatter;
    using reducing::reduce;
    using reducing::reduce_async;
    using reducing::reduce_scatter;
    using reducing::reduce_scatter_async;

    using gathering::allgather;
    using gathering::allgather_async;
    using gathering::alltoall;
    using gathering::alltoall_async;
    using gathering::gather;
    using gathering::gather_async;
    using gathering::plan_allgather;
    using gathering::scatter;
    using gathering::scatter_async;

    using broadcasting::barrier;
    using broadcasting::barrier_async;
    using broadcasting::broadcast;
    using broadcasting::broadcast_async;
    using broadcasting::plan_broadcast;
};

}  // namespace v0
}  // namespace hvd
