// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "arguments.hpp"

namespace hvd::inline v0::detail {

/// The members of a communicator that move device tensors.
template <class Comm, class B>
class device_movements {
public:
    /// Gives every rank the root's tensor, or the tensors of a `fuse(…)`.
    ///
    /// **Collective**, **Buffers**, **Completion** and errors of this and the following are as for
    /// `allreduce`.
    /// @snippet tests/device/snippets.cpp device_movements
    template <class X>
    void broadcast(X&& x, root r = root{0}, const device_options& o = {}) {
        broadcast_async(x, r, o).wait();
    }
    /// Begins a broadcast.
    template <class X>
    device_request broadcast_async(X&& x, root r = root{0}, const device_options& o = {}) {
        if constexpr (is_fused<std::remove_cvref_t<X>>) {
            if constexpr (check_tensor<B, std::remove_cvref_t<X>>()) {
                std::vector<collective_call> calls;
                x.for_each(
                    [&](const auto& tensor) { calls.push_back(broadcast_of(tensor, r, o).call); });
                return start(session(), calls, {"broadcast", o.name}, o.stream, o.timeout);
            } else return {};
        } else if constexpr (check_device_pair<B, X, X>()) {
            return begin(broadcast_of(x, r, o), o);
        } else {
            return {};
        }
    }

    /// Gives every rank all tensors, one after the other in rank order. They are equally long, or
    /// have `.counts` elements. **Buffers** of this and the following: `in` and `out` do not
    /// overlap, or a rank's own tensor is at its place in that of all ranks.
    template <class In, class View>
    void allgather(const In& in, const into_view<View>& to, const device_options& o = {}) {
        allgather_async(in, to, o).wait();
    }
    /// Begins an allgather.
    template <class In, class View>
    device_request allgather_async(const In& in, const into_view<View>& to,
                                   const device_options& o = {}) {
        return begin(collective::allgather, in, to, o,
                     [&](device_arguments& a, std::size_t given, std::size_t taken) {
                         a.counts(o.counts, given, taken);
                     });
    }

    /// Gives the root all tensors. They are equally long, or have `.counts` elements. On other
    /// ranks `out` is not used.
    template <class In, class View>
    void gather(const In& in, const into_view<View>& to, root r = root{0},
                const device_options& o = {}) {
        gather_async(in, to, r, o).wait();
    }
    /// Begins a gather.
    template <class In, class View>
    device_request gather_async(const In& in, const into_view<View>& to, root r = root{0},
                                const device_options& o = {}) {
        return begin(collective::gather, in, to, o,
                     [&](device_arguments& a, std::size_t given, std::size_t taken) {
                         a.root(r.rank);
                         a.counts(o.counts, given, taken, a.is_root());
                     });
    }

    /// Gives each rank its part of the root's tensor. The parts are equally long, or have `.counts`
    /// elements. On other ranks `in` is not used.
    template <class In, class View>
    void scatter(const In& in, const into_view<View>& to, root r = root{0},
                 const device_options& o = {}) {
        scatter_async(in, to, r, o).wait();
    }
    /// Begins a scatter.
    template <class In, class View>
    device_request scatter_async(const In& in, const into_view<View>& to, root r = root{0},
                                 const device_options& o = {}) {
        return begin(collective::scatter, in, to, o,
                     [&](device_arguments& a, std::size_t given, std::size_t taken) {
                         a.root(r.rank);
                         a.counts(o.counts, taken, given, a.is_root());
                     });
    }

    /// Sends the p-th part of `in` to rank p: equal parts, or `.counts` elements to each rank. Each
    /// rank passes the elements that come from the others in `.receive_counts`, so that nothing is
    /// exchanged before the data moves. `in` and `out` do not overlap. With `staged` they may also
    /// be the same, if each rank sends a rank as much as it gets from it.
    template <class In, class View>
    void alltoall(const In& in, const into_view<View>& to, const device_options& o = {}) {
        alltoall_async(in, to, o).wait();
    }
    /// Begins an alltoall.
    template <class In, class View>
    device_request alltoall_async(const In& in, const into_view<View>& to,
                                  const device_options& o = {}) {
        return begin(collective::alltoall, in, to, o,
                     [&](device_arguments& a, std::size_t given, std::size_t taken) {
                         a.exchange(o.counts, o.receive_counts, given, taken);
                     });
    }

    /// Returns when every rank has called it, and the earlier work of `.stream` is done on all of
    /// them.
    void barrier(const device_options& o = {}) { barrier_async(o).wait(); }
    /// Begins a barrier.
    device_request barrier_async(const device_options& o = {}) {
        return begin(device_arguments(*session(), collective::barrier, o.name, o.timeout), o);
    }

private:
    const auto& session() const {
        return device_access::session_of(static_cast<const Comm&>(*this));
    }

    template <class In, class Out>
    device_arguments arguments(collective kind, const In& in, const Out& out,
                               const device_options& o) const {
        device_arguments a(*session(), kind, o.name, o.timeout);
        a.tensors(in, out);
        return a;
    }

    // `describe(arguments, given, taken)` adds the special part of a collective. The numbers are
    // the elements of both tensors.
    template <class In, class View, class F>
    device_request begin(collective kind, const In& in, const into_view<View>& to,
                         const device_options& o, F&& describe) const {
        if constexpr (check_device_pair<B, In, View>()) {
            auto a = arguments(kind, in, to.view, o);
            const std::size_t given = to_view(in).size(), taken = to.view.size();
            describe(a, given, taken);
            a.apart(given, taken);
            return begin(a, o);
        } else {
            return {};
        }
    }

    template <class X>
    device_arguments broadcast_of(const X& x, root r, const device_options& o) const {
        auto a = arguments(collective::broadcast, x, x, o);
        a.root(r.rank);
        a.call.entry.count = to_view(x).size();
        return a;
    }

    device_request begin(const device_arguments& a, const device_options& o) const {
        return start(session(), {&a.call, 1}, a.label(), o.stream, o.timeout);
    }
};

}  // namespace hvd::inline v0::detail
