// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call/calls_base.hpp"
#include "call/result_types.hpp"

namespace hvd::inline v0::detail {

// Reduces in place, or from one tensor to another of as many elements. A collective with the same
// arguments derives from it.
template <class In, class Out, class Op>
struct allreduce_call : call {
    Op function;
    using T = typename In::value_type;
    static constexpr bool packs = is_strided<In> || is_strided<Out>;
    reduction_group group;
    [[no_unique_address]] std::conditional_t<packs, packed_pair, no_packing> packed;

    allreduce_call(const In& in, const Out& out, const Op& f, const reduce_options& o,
                   collective kind = collective::allreduce)
        : call(kind, o.name), function(f) {
        this->describe(in);
        describe_operation(op, function, o.prescale, o.postscale);
        op.in = bytes_of(in);
        op.out = bytes_of(out);
        const std::size_t count = std::size_t(op.entry.count);
        if (op.in != op.out || in.size() != out.size() || packs) check_output(in, out);
        group = group_of<T>(op, function, 0, count);
        op.groups = &group;
        op.group_count = 1;
        if constexpr (packs) {
            packed.input.tensor = erase(in);
            packed.output.tensor = erase(out);
            op.inputs = {&packed.input.tensor, 1};
            op.in = nullptr;
            op.out = nullptr;
            op.buffer_bytes = count * sizeof(T);
            op.self = this;
            op.pack = [](void* self, operation& current) {
                packed_tensor::pack_into_buffer(&static_cast<allreduce_call*>(self)->packed.input,
                                                current);
            };
            op.unpack = [](void* self, operation& current) {
                packed_tensor::unpack_from_buffer(
                    &static_cast<allreduce_call*>(self)->packed.output, current);
            };
        }
    }

private:
    void check_output(const In& in, const Out& out) {
        this->check_size(out.size(), in.size());
        if constexpr (!packs)  // packed tensors may overlap
            this->check_overlap(op.in, op.out, in.size() * sizeof(T), out.size() * sizeof(T));
    }
};

// Reduces a fused list in place. The caller owns the storage; for blocking calls it is the
// communicator's.
template <class Fused, class Op>
struct fused_allreduce_call : call {
    Op function;
    fused_buffer buffer;
    std::array<reduction_group, fused_types_t<Fused>::size> groups;

    fused_allreduce_call(const Fused& list, const Op& f, const reduce_options& o,
                         std::vector<tensor_ref>& tensors, std::vector<std::size_t>& offsets,
                         collective kind = collective::allreduce)
        : call(kind, o.name), function(f), buffer{tensors, offsets} {
        this->check_list(list);
        describe_operation(op, function, o.prescale, o.postscale);
        fused_layout layout{tensors, offsets};
        const auto placed = lay_out(list, layout);
        [&]<class... T>(type_list<T...>) {
            std::size_t i = 0;
            ((groups[i] = group_of<T>(op, function, placed[i].offset, placed[i].count), ++i), ...);
        }(fused_types_t<Fused>{});
        op.groups = groups.data();
        op.group_count = groups.size();
        op.entry.fused = true;
        op.entry.count = layout.bytes;
        op.entry.content = buffer.content();
        op.inputs = {tensors.data(), tensors.size()};
        if (!buffer.needs_packing()) {
            op.in = op.out = tensors.front().data;
            return;
        }
        if (buffer.is_dense()) {
            op.tensors = tensors.data();
            op.offsets = offsets.data();
            op.tensor_count = tensors.size();
        }
        op.buffer_bytes = layout.bytes;
        op.self = &buffer;
        op.pack = &fused_buffer::pack_all;
        op.unpack = &fused_buffer::unpack_all;
    }
};

// Owns its storage, for calls and plans that outlive the function that makes them.
template <class Fused, class Op>
struct kept_fused_allreduce : fused_storage, fused_allreduce_call<Fused, Op> {
    kept_fused_allreduce(const Fused& list, const Op& f, const reduce_options& o)
        : fused_allreduce_call<Fused, Op>(list, f, o, this->tensors, this->offsets) {}
};

/// The members of a communicator for allreduce.
template <class Comm, class B>
class allreduce_calls {
public:
    /// Reduces `x` over all ranks, element by element. Every rank gets the result in `x`.
    ///
    /// The reduction is in rank order, and with several nodes inside each node first. It gives
    /// every rank the same bits (docs/determinism.md says what each backend promises). 16-bit
    /// floats are summed in float and rounded once, and once more between nodes. Their mean is
    /// finite where they are.
    /// **Collective**: all ranks, in the same order of calls, with equal element type, count,
    /// shape, operation and scales.
    /// **Buffers**: `x` is read and written. It is any viewable or a `fuse(…)` of several, also
    /// empty.
    /// **Completion**: done on return.
    /// **Threads**: one at a time per communicator.
    /// @throws hvd::usage_error for a call that is wrong by itself, hvd::mismatch_error if the
    /// ranks disagree, hvd::peer_error if another rank refused, left or is late. `hvd::adasum`
    /// works only in this form (others do not compile) and needs hvd/train.hpp; it combines each
    /// tensor of a `fuse(…)` by itself.
    /// @snippet tests/docs/snippets.cpp allreduce
    template <class X, class Op = reduce_options>
    void allreduce(X&& x, const Op& op = {}, const reduce_options& o = {}) {
        if constexpr (std::is_same_v<Op, op::adasum>) {
            // Adasum combines whole vectors, not elements. It is made of other calls, in a later
            // room.
            constexpr bool known = requires { adasum_allreduce(self(), x, o); };
            static_assert(known, "hvd: allreduce with hvd::adasum needs #include <hvd/train.hpp>");
            if constexpr (known) adasum_allreduce(self(), x, o);
        } else if constexpr (check_tensor<B, X, tensor_use::written>() &&
                             check_reduced<B, X, Op>()) {
            if constexpr (is_fused<std::remove_cvref_t<X>>) {
                run_fused(x, op, o);
            } else if constexpr (has_view_traits<std::remove_cvref_t<X>>) {
                const auto view = view_for(self(), collective::allreduce, o, x);
                reduce_views(view, view, op, o);
            } else {
                const auto view = to_view(x);
                reduce_views(view, view, op, o);
            }
        }
    }

    /// Reduces `in` over all ranks into the caller's memory: `allreduce(in, into(out), op)`. `out`
    /// has as many elements, and may be written without `into`.
    ///
    /// Everything else is as in place. `out` may be exactly `in`.
    /// @throws hvd::usage_error also if they overlap in part or differ in size.
    template <class In, class Out, class Op>
        requires(!std::convertible_to<Op, reduce_options> && !operation_like<Out>)
    void allreduce(const In& in, Out&& out, const Op& op, const reduce_options& o = {}) {
        if constexpr (check_unfused<In, Out>() && check_tensor<B, const In&>()) {
            if constexpr (check_tensor<B, Out, tensor_use::written>() &&
                          check_reduced<B, const In&, Op>()) {
                static_assert(std::is_same_v<element_of<const In&>, element_of<Out>>,
                              "hvd: input and output have different element types");
                reduce_views(view_for(self(), collective::allreduce, o, in),
                             view_for(self(), collective::allreduce, o, out), op, o);
            }
        }
    }

    template <class In, class View, class Op>
    void allreduce(const In& in, const into_view<View>& out, const Op& op,
                   const reduce_options& o = {}) {
        allreduce(in, out.view, op, o);
    }

    // A name that is not in options is refused.
    template <class X, operation_like Op, std::convertible_to<std::string_view> Name>
    refused_call allreduce(X&&, const Op&, const Name&) {
        static_assert(!operation_like<Op>, "hvd: a name is an option: {.name = …}");
        return {};
    }

    /// Begins an allreduce in place. It is complete when the request is, and `x` stays untouched
    /// until then.
    template <class X, class Op = reduce_options>
    request allreduce_async(X&& x, const Op& op = {}, const reduce_options& o = {}) {
        using O = operation_of<Op>;
        if constexpr (check_tensor<B, X, tensor_use::written>() && check_reduced<B, X, Op>())
            return start_call(self(), collective::allreduce, o, [&] {
                if constexpr (is_fused<std::remove_cvref_t<X>>)
                    return kept_fused_allreduce<std::remove_cvref_t<X>, O>(x, as_operation(op), o);
                else
                    return allreduce_call<view_of<X>, view_of<X>, O>(to_view(x), to_view(x),
                                                                     as_operation(op), o);
            });
        return {};
    }

    /// Begins an allreduce from `in` into `out`. Both stay untouched until the request is complete.
    template <class In, class Out, class Op>
        requires(!std::convertible_to<Op, reduce_options> && !operation_like<Out>)
    request allreduce_async(In&& in, Out&& out, const Op& op, const reduce_options& o = {}) {
        if constexpr (check_unfused<In, Out>() && check_tensor<B, In, tensor_use::kept>() &&
                      check_tensor<B, Out, tensor_use::written>() && check_reduced<B, In, Op>()) {
            static_assert(std::is_same_v<element_of<In>, element_of<Out>>,
                          "hvd: input and output have different element types");
            using O = operation_of<Op>;
            return start_call(self(), collective::allreduce, o, [&] {
                return allreduce_call<view_of<In>, view_of<Out>, O>(to_view(in), to_view(out),
                                                                    as_operation(op), o);
            });
        }
        return {};
    }
    template <class In, class View, class Op>
    request allreduce_async(In&& in, const into_view<View>& out, const Op& op,
                            const reduce_options& o = {}) {
        return allreduce_async(std::forward<In>(in), out.view, op, o);
    }

    // Numbers in braces are refused.
    template <class T, class... A>
    refused_call allreduce(std::initializer_list<T>&&, A&&...) {
        return refuse_braces<T>();
    }

    // An operation in brackets is refused.
    template <auto Op, class... A>
    refused_call allreduce(A&&...) {
        return refuse_operation_in_brackets<Op>();
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }

    template <class In, class Out, class Op>
    void reduce_views(const In& in, const Out& out, const Op& op, const reduce_options& o) {
        if constexpr (is_direct<B> && !is_strided<In> && !is_strided<Out>) {
            access::direct_endpoint_of(self(), collective::allreduce, o.timeout)
                ->allreduce(in.data(), out.data(), in.size(), as_operation(op), o);
        } else {
            using O = operation_of<Op>;
            using made = allreduce_call<In, Out, O>;
            if constexpr (std::is_nothrow_copy_constructible_v<O>) {
                made call(in, out, as_operation(op), o);
                access::run(static_cast<Comm&>(*this), call.op, o.timeout);
            } else {
                run_made(self(), collective::allreduce, o,
                         [&] { return made(in, out, as_operation(op), o); });
            }
        }
    }

    template <class Fused, class Op>
    void run_fused(const Fused& list, const Op& op, const reduce_options& o) {
        run_made(self(), collective::allreduce, o, [&] {
            workspace& work = access::session_of(self()).work();
            return fused_allreduce_call<Fused, operation_of<Op>>(list, as_operation(op), o,
                                                                 work.tensors, work.offsets);
        });
    }
};

}  // namespace hvd::inline v0::detail
