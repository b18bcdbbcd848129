// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "allreduce.hpp"
#include "call/result_types.hpp"

namespace hvd::inline v0::detail {

template <class In, class Out, class Op>
struct reduce_call : call {
    Op function;
    using T = typename In::value_type;
    packed_tensor input, output;
    reduction_group group;
    bool is_root;

    reduce_call(const In& in, const Out& out, const Op& f, hvd::root r, int rank, int size,
                const reduce_options& o)
        : call(collective::reduce, o.name), function(f), is_root(rank == r.rank) {
        this->describe(in);
        describe_operation(op, function, o.prescale, o.postscale);
        this->check_root(r.rank, size);
        if (is_root) this->check_size(out.size(), in.size());
        if constexpr (!is_strided<In> && !is_strided<Out>)  // packed tensors may overlap
            if (is_root)
                this->check_overlap(bytes_of(in), bytes_of(out), in.size() * sizeof(T),
                                    out.size() * sizeof(T));
        group = group_of<T>(op, function, 0, in.size());
        op.groups = &group;
        op.group_count = 1;
        if constexpr (is_strided<In> || is_strided<Out>) {
            input.tensor = erase(in);
            output.tensor = erase(out);
            op.inputs = {&input.tensor, 1};
            op.buffer_bytes = in.size() * sizeof(T);
            op.self = this;
            op.pack = [](void* self, operation& current) {
                packed_tensor::pack_into_buffer(&static_cast<reduce_call*>(self)->input, current);
            };
            op.unpack = [](void* self, operation& current) {
                auto& that = *static_cast<reduce_call*>(self);
                if (that.is_root) packed_tensor::unpack_from_buffer(&that.output, current);
            };
        } else {
            op.in = bytes_of(in);
            op.out = bytes_of(out);
        }
    }
};

// Reduces a fused list in place on the root. It travels as that of an allreduce.
template <class Fused, class Op>
struct fused_reduce_call : fused_allreduce_call<Fused, Op> {
    bool is_root;

    fused_reduce_call(const Fused& list, const Op& f, hvd::root r, int rank, int size,
                      const reduce_options& o, std::vector<tensor_ref>& tensors,
                      std::vector<std::size_t>& offsets)
        : fused_allreduce_call<Fused, Op>(list, f, o, tensors, offsets, collective::reduce),
          is_root(rank == r.rank) {
        this->check_root(r.rank, size);
        this->op.tensors = nullptr;
        this->op.offsets = nullptr;
        this->op.tensor_count = 0;
        if (!is_root) this->op.unpack = nullptr;
    }
};

template <class Fused, class Op>
struct kept_fused_reduce : fused_storage, fused_reduce_call<Fused, Op> {
    kept_fused_reduce(const Fused& list, const Op& f, hvd::root r, int rank, int size,
                      const reduce_options& o)
        : fused_reduce_call<Fused, Op>(list, f, r, rank, size, o, this->tensors, this->offsets) {}
};

/// The members of a communicator for reduce.
template <class Comm, class B>
class reduce_calls {
public:
    /// Reduces `x` over all ranks. The root gets the result in `x`; the others' `x` stays as it is.
    /// It is any viewable or a `fuse(…)` of several.
    ///
    /// **Collective**, **Buffers**, **Threads** and errors are as for `allreduce`, plus the root,
    /// which all ranks name alike. **Completion**: done on return.
    /// @snippet tests/docs/snippets.cpp reduce
    template <class X, class Op = reduce_options>
    void reduce(X&& x, const Op& op = {}, root r = root{0}, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, X, tensor_use::written>() && check_reduced<B, X, Op>()) {
            if constexpr (is_fused<std::remove_cvref_t<X>>) {
                run_fused(x, op, r, o);
            } else {
                const auto view = view_for(self(), collective::reduce, o, x);
                run_views(view, view, op, r, o);
            }
        }
    }

    /// Reduces `in` over all ranks into the root's `out`. The others' `out` is ignored.
    template <class In, class View, class Op>
    void reduce(const In& in, const into_view<View>& out, const Op& op, root r = root{0},
                const reduce_options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, const In&>() &&
                      check_reduced<B, const In&, Op>()) {
            static_assert(std::is_same_v<element_of<const In&>, typename View::value_type>,
                          "hvd: input and output have different element types");
            run_views(view_for(self(), collective::reduce, o, in), out.view, op, r, o);
        }
    }

    /// In place, begun: complete when the request is.
    template <class X, class Op = reduce_options>
    request reduce_async(X&& x, const Op& op = {}, root r = root{0}, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, X, tensor_use::written>() && check_reduced<B, X, Op>()) {
            if constexpr (is_fused<std::remove_cvref_t<X>>) return start_fused(x, op, r, o);
            else return start_views(x, x, op, r, o);
        }
        return {};
    }

    /// Begins a reduction into the root's `out`. Both tensors stay untouched until the request is
    /// complete.
    template <class In, class View, class Op>
    request reduce_async(In&& in, const into_view<View>& out, const Op& op, root r = root{0},
                         const reduce_options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, In, tensor_use::kept>() &&
                      check_reduced<B, In, Op>()) {
            static_assert(std::is_same_v<element_of<In>, typename View::value_type>,
                          "hvd: input and output have different element types");
            return start_views(in, out.view, op, r, o);
        }
        return {};
    }

    // A root before the operation is refused.
    template <class X, operation_like Op, class... A>
        requires(!std::same_as<Op, root>)
    refused_call reduce(X&&, root, const Op&, A&&...) {
        static_assert(
            !operation_like<Op>,
            "hvd: the operation comes before the root: reduce(x, hvd::sum, hvd::root{0})");
        return {};
    }

    // An output without hvd::into is refused.
    template <class In, bare_output Out, class Op, class... A>
        requires(!pointer_like<In>)
    refused_call reduce(const In&, Out&&, const Op&, A&&...) {
        static_assert(has_into<Out>, "hvd: the memory of the result is marked: hvd::into(out)");
        return {};
    }

    // A pointer and a count are refused with the words of check_tensor.
    template <pointer_like P, class... A>
    refused_call reduce(P&&, A&&...) {
        check_tensor<B, P>();
        return {};
    }

    // Numbers in braces are refused.
    template <class T, class... A>
    refused_call reduce(std::initializer_list<T>&&, A&&...) {
        return refuse_braces<T>();
    }

    // An operation in brackets is refused.
    template <auto Op, class... A>
    refused_call reduce(A&&...) {
        return refuse_operation_in_brackets<Op>();
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }

    template <class Fused, class Op>
    void run_fused(const Fused& list, const Op& op, root r, const reduce_options& o) {
        run_made(self(), collective::reduce, o, [&] {
            workspace& work = own().work();
            return fused_reduce_call<Fused, operation_of<Op>>(list, as_operation(op), r,
                                                              own().rank(), own().size(), o,
                                                              work.tensors, work.offsets);
        });
    }

    template <class Fused, class Op>
    request start_fused(const Fused& list, const Op& op, root r, const reduce_options& o) {
        return start_call(self(), collective::reduce, o, [&] {
            return kept_fused_reduce<Fused, operation_of<Op>>(list, as_operation(op), r,
                                                              own().rank(), own().size(), o);
        });
    }

    template <class In, class Out, class Op>
    void run_views(const In& in, const Out& out, const Op& op, root r, const reduce_options& o) {
        if constexpr (is_direct<B> && !is_strided<In> && !is_strided<Out>) {
            access::direct_endpoint_of(self(), collective::reduce, o.timeout)
                ->reduce(in.data(), out.data(), in.size(), as_operation(op), r.rank, o);
        } else {
            using O = operation_of<Op>;
            run_copying<O>(self(), collective::reduce, o, [&] {
                return reduce_call<In, Out, O>(in, out, as_operation(op), r, own().rank(),
                                               own().size(), o);
            });
        }
    }

    template <class In, class Out, class Op>
    request start_views(In& in, Out& out, const Op& op, root r, const reduce_options& o) {
        return start_call(self(), collective::reduce, o, [&] {
            return reduce_call<view_of<In>, view_of<Out>, operation_of<Op>>(
                to_view(in), to_view(out), as_operation(op), r, own().rank(), own().size(), o);
        });
    }
};

}  // namespace hvd::inline v0::detail
