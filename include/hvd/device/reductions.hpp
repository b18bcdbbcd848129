// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "arguments.hpp"

namespace hvd::inline v0::detail {

// Makes a group of calls for a fused list. No tensor is copied.
template <class B, class Op, class Fused>
std::vector<collective_call> calls_of_reduction(device_session& session, const Fused& list,
                                                const Op& op, const device_reduce_options& o) {
    std::vector<collective_call> calls;
    list.for_each([&](const auto& x) {
        device_arguments a(session, collective::allreduce, o.name, o.timeout);
        a.tensors(x, x);
        a.call.entry.count = x.size();
        describe_reduction<B, element_of<decltype(x)>>(a.call, op, o);
        calls.push_back(a.call);
    });
    return calls;
}

/// The members of a communicator that reduce device tensors.
template <class Comm, class B>
class device_reductions {
public:
    /// Reduces `x` over all ranks, in place. It is a view of device memory, or a `fuse(…)` of
    /// several, which are not packed (a plan packs the small ones).
    ///
    /// **Collective**: all ranks, in the same order of calls, with equal element type, count,
    /// operation and scales.
    /// **Buffers**: device memory of this communicator's GPU. The call comes after what `.stream`,
    /// or else the default streams, have been given.
    /// **Completion**: done on return. Averages and scales round once, for each element type by its
    /// cheapest exact method (NCCL's method for float16 loses subnormals: docs/device.md).
    /// @throws hvd::usage_error for a call that this rank can see to be wrong, hvd::peer_error,
    /// hvd::nccl_error, hvd::cuda_error.
    /// @snippet tests/device/snippets.cpp device_allreduce
    template <class X, class Op>
        requires operation_like<Op>
    void allreduce(X&& x, const Op& op, const device_reduce_options& o = {}) {
        if constexpr (check_tensor<B, X, tensor_use::written>() && check_reduced<B, X, Op>())
            allreduce_async(x, op, o).wait();
    }

    /// Reduces `in` over all ranks into the caller's memory: `allreduce(in, into(out), op)`. `out`
    /// has as many elements, and may be written without `into`. The two are the same memory or do
    /// not overlap.
    template <class In, class Out, class Op>
        requires operation_like<Op> && (!operation_like<Out>)
    void allreduce(const In& in, Out&& out, const Op& op, const device_reduce_options& o = {}) {
        allreduce_async(in, out, op, o).wait();
    }

    template <class In, class View, class Op>
    void allreduce(const In& in, const into_view<View>& out, const Op& op,
                   const device_reduce_options& o = {}) {
        allreduce_async(in, out.view, op, o).wait();
    }

    /// Begins an allreduce in place. It is complete when the request is.
    template <class X, class Op>
        requires operation_like<Op>
    device_request allreduce_async(X&& x, const Op& op, const device_reduce_options& o = {}) {
        if constexpr (!check_tensor<B, X, tensor_use::written>() || !check_reduced<B, X, Op>()) {
            return {};
        } else if constexpr (is_fused<std::remove_cvref_t<X>>) {
            const auto operation = as_operation(op);
            return start(session(), calls_of_reduction<B>(*session(), x, operation, o),
                         {"allreduce", o.name}, o.stream, o.timeout);
        } else {
            return allreduce_async(x, x, op, o);
        }
    }
    /// Begins an allreduce from `in` to `out`.
    template <class In, class Out, class Op>
        requires operation_like<Op> && (!operation_like<Out>)
    device_request allreduce_async(const In& in, Out&& out, const Op& op,
                                   const device_reduce_options& o = {}) {
        if constexpr (check_device_reduction<B, In, Out, Op>()) {
            const auto operation = as_operation(op);
            auto a = reduction(collective::allreduce, in, out, operation, o);
            a.call.entry.count = to_view(in).size();
            a.require(a.call.entry.count, to_view(out).size(), "the output");
            a.apart(a.call.entry.count, a.call.entry.count);
            return begin(a, o);
        } else {
            return {};
        }
    }
    template <class In, class View, class Op>
    device_request allreduce_async(const In& in, const into_view<View>& out, const Op& op,
                                   const device_reduce_options& o = {}) {
        return allreduce_async(in, out.view, op, o);
    }

    /// Reduces to `out` of the root. On other ranks `out` is not used. Everything else is as for
    /// `allreduce`.
    template <class In, class View, class Op>
    void reduce(const In& in, const into_view<View>& to, const Op& op, root r = root{0},
                const device_reduce_options& o = {}) {
        reduce_async(in, to, op, r, o).wait();
    }

    /// Begins a reduction to the root.
    template <class In, class View, class Op>
    device_request reduce_async(const In& in, const into_view<View>& to, const Op& op,
                                root r = root{0}, const device_reduce_options& o = {}) {
        if constexpr (check_device_reduction<B, In, View, Op>()) {
            const auto operation = as_operation(op);
            auto a = reduction(collective::reduce, in, to.view, operation, o);
            a.root(r.rank);
            a.call.entry.count = to_view(in).size();
            if (a.is_root()) a.require(a.call.entry.count, to.view.size(), "into()");
            a.apart(a.call.entry.count, to.view.size());
            return begin(a, o);
        } else {
            return {};
        }
    }

    /// Reduces over all ranks and leaves each rank its slice. The slices are equally long, or have
    /// `.counts` elements. `in` and `out` do not overlap, or `out` is this rank's slice of `in`.
    template <class In, class View, class Op>
    void reduce_scatter(const In& in, const Op& op, const into_view<View>& to,
                        const device_reduce_options& o = {}) {
        reduce_scatter_async(in, op, to, o).wait();
    }

    /// Begins a reduce_scatter.
    template <class In, class View, class Op>
    device_request reduce_scatter_async(const In& in, const Op& op, const into_view<View>& to,
                                        const device_reduce_options& o = {}) {
        if constexpr (check_device_reduction<B, In, View, Op>()) {
            const auto operation = as_operation(op);
            auto a = reduction(collective::reduce_scatter, in, to.view, operation, o);
            a.counts(o.counts, to.view.size(), to_view(in).size());
            a.apart(to_view(in).size(), to.view.size());
            return begin(a, o);
        } else {
            return {};
        }
    }

private:
    const auto& session() const {
        return device_access::session_of(static_cast<const Comm&>(*this));
    }

    template <class In, class Out, class Op>
    device_arguments reduction(collective kind, const In& in, const Out& out, const Op& op,
                               const device_reduce_options& o) const {
        device_arguments a(*session(), kind, o.name, o.timeout);
        a.tensors(in, out);
        describe_reduction<B, element_of<In>>(a.call, op, o);
        return a;
    }

    device_request begin(const device_arguments& a, const device_reduce_options& o) const {
        return start(session(), {&a.call, 1}, a.label(), o.stream, o.timeout);
    }
};

}  // namespace hvd::inline v0::detail
