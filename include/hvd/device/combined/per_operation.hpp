// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../comm/communicator.hpp"

namespace hvd::inline v0 {
namespace detail {

struct device_access;

// A combination of backends is a backend of the host, or of devices, as its first one is.
template <class First>
struct kind_of_first;
template <host_backend First>
struct kind_of_first<First> {
    using endpoint_type = typename First::endpoint_type;
};
template <device_backend First>
struct kind_of_first<First> {
    using space_type = typename First::space_type;
    using session_type = typename First::session_type;
};

}  // namespace detail

/// Combines a backend for each kind of collective into one type. Horovod's
/// HOROVOD_GPU_ALLREDUCE=NCCL, HOROVOD_GPU_ALLGATHER=MPI and HOROVOD_GPU_BROADCAST=MPI are
/// `per_operation<nccl, staged<mpi>, staged<mpi>>`.
template <backend Allreduce, backend Allgather, backend Broadcast>
struct per_operation : detail::kind_of_first<Allreduce>,
                       detail::own_options_among<Allreduce, Allgather, Broadcast> {
    template <class T>
    static constexpr bool moves =
        transportable<T, Allreduce> && transportable<T, Allgather> && transportable<T, Broadcast>;
    template <class T, class Op>
    static constexpr bool reduces = reducible<T, Op, Allreduce>;
};

namespace detail {

// The communicator of one backend, made from any other.
template <class Backend>
class part_of_operations : public communicator<Backend> {
    using base = communicator<Backend>;

public:
    part_of_operations() = default;
    template <class Bootstrap, class... Own>
    part_of_operations(communicator<Bootstrap>& bootstrap, const communicator_options& options,
                       const Own&... own)
        : base(made(bootstrap, options, own...)) {}

    // `derive(communicator)` gives a communicator of some of the ranks.
    template <class F>
    part_of_operations derived(F& derive) {
        return part_of_operations(derive(static_cast<base&>(*this)));
    }

private:
    explicit part_of_operations(base&& part) : base(std::move(part)) {}

    // If the other ranks have the same backend, their communicator is split.
    template <class Bootstrap, class... Own>
    static base made(communicator<Bootstrap>& bootstrap, const communicator_options& options,
                     const Own&... own) {
        if constexpr (std::is_same_v<Bootstrap, Backend>)
            return bootstrap.split(0, bootstrap.rank());
        else if constexpr (has_own_options<Backend>) return base(bootstrap, options, own...);
        else return base(bootstrap, options);
    }
};

// Stands for a backend that another parameter already named.
template <int>
struct no_part {
    no_part() = default;
    template <class Bootstrap, class... Own>
    no_part(communicator<Bootstrap>&, const communicator_options&, const Own&...) {}
    template <class F>
    no_part derived(F&) {
        return {};
    }
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
template <backend Allreduce, backend Allgather, backend Broadcast>
class communicator<per_operation<Allreduce, Allgather, Broadcast>>
    : detail::part_of_operations<Allreduce>,
      detail::part_unless_among<1, Allgather, Allreduce>,
      detail::part_unless_among<2, Broadcast, Allreduce, Allgather> {
    using reducing = detail::part_of_operations<Allreduce>;
    using gathering = detail::part_of_operations<Allgather>;
    using broadcasting = detail::part_of_operations<Broadcast>;
    using second = detail::part_unless_among<1, Allgather, Allreduce>;
    using third = detail::part_unless_among<2, Broadcast, Allreduce, Allgather>;

public:
    using backend_type = per_operation<Allreduce, Allgather, Broadcast>;

    /// Makes an empty communicator, of which this rank is not a member.
    communicator() = default;

    /// Takes the ranks of `bootstrap`, and makes a communicator for each backend. **Collective**.
    template <class Bootstrap>
    explicit communicator(communicator<Bootstrap>& bootstrap,
                          const communicator_options& options = {})
        : reducing(bootstrap, options), second(bootstrap, options), third(bootstrap, options) {}

    /// The same, with options for those of the backends that take them, such as `nccl_options`.
    /// @snippet tests/device/snippets.cpp nccl_options
    template <class Bootstrap, class Policy = backend_type>
        requires detail::has_own_options<Policy>
    communicator(communicator<Bootstrap>& bootstrap, const communicator_options& options,
                 const typename Policy::own_options& own)
        : reducing(bootstrap, options, own),
          second(bootstrap, options, own),
          third(bootstrap, options, own) {}

    using reducing::operator bool;
    using reducing::rank;
    using reducing::size;

    using reducing::cross_rank;
    using reducing::cross_size;
    using reducing::is_homogeneous;
    using reducing::local_rank;
    using reducing::local_size;

    /// Makes a communicator of the ranks of this node, in order. **Collective**, with no call under
    /// way. That holds for the following too, which mean the same as in each of the backends.
    [[nodiscard("hvd: a communicator ends with its object")]] communicator local() {
        return derived([](auto& part) { return part.local(); });
    }
    /// Makes a communicator of the ranks with this local rank, one of each node that has it.
    [[nodiscard("hvd: a communicator ends with its object")]] communicator cross() {
        return derived([](auto& part) { return part.cross(); });
    }
    /// Makes a communicator of the given ranks, in ascending order. It is empty on all others.
    [[nodiscard("hvd: a communicator ends with its object")]] communicator subset(
        std::span<const int> ranks) {
        return derived([=](auto& part) { return part.subset(ranks); });
    }
    [[nodiscard("hvd: a communicator ends with its object")]] communicator subset(
        std::initializer_list<int> ranks) {
        return subset(std::span<const int>(ranks.begin(), ranks.size()));
    }
    /// Makes one communicator for each colour, its ranks ordered by key, then by rank. It is empty
    /// for a negative colour.
    [[nodiscard("hvd: a communicator ends with its object")]] communicator split(int color,
                                                                                 int key = 0) {
        return derived([=](auto& part) { return part.split(color, key); });
    }

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

private:
    friend struct detail::device_access;

    const communicator<Allreduce>& reducing_part() const { return *this; }
    const communicator<Allgather>& gathering_part() const { return *this; }
    const communicator<Broadcast>& broadcasting_part() const { return *this; }

    // Derives from the communicator of each backend, in one order on all ranks.
    template <class F>
    communicator derived(F derive) {
        communicator part;
        static_cast<reducing&>(part) = reducing::derived(derive);
        static_cast<second&>(part) = second::derived(derive);
        static_cast<third&>(part) = third::derived(derive);
        return part;
    }
};

}  // namespace hvd::inline v0
