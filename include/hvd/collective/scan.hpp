// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../kernel/neutral.hpp"
#include "allreduce.hpp"

namespace hvd::inline v0::detail {

// The reduction of no elements is known: of hvd's own operations and types.
template <class T, class Op>
constexpr bool has_neutral = !is_custom<Op> && dtype_traits<T>::id != dtype::user;

// Replaces row r of args.out by the reduction of rows 0 to r. There are args.ranks rows of
// args.count elements. Row r of an average is divided by args.divisor + r. The steps are those of
// reduce_plain_blocks(), and every row is finished from the same running result, so that the bits
// are those of a reduction of so many ranks.
template <class T, class Op>
void scan_blocks(const reduce_args& args) {
    using A = typename accumulator<T, Op>::type;
    constexpr std::size_t block =
        sizeof(A) > tuning::running_block ? 1 : tuning::running_block / sizeof(A);
    const Op& operation = *static_cast<const Op*>(args.op);
    const double power = power_before_mean<T, Op>(args.divisor + args.ranks - 1),
                 before = args.prescale * power;
    A running[block];
    for (std::size_t done = 0; done < args.count; done += block) {
        const std::size_t m = args.count - done < block ? args.count - done : block;
        std::byte* row = args.out + done * sizeof(T);
        reduce_args of_row = args;
        for (int r = 0; r < args.ranks; ++r, row += args.count * sizeof(T), ++of_row.divisor) {
            for (std::size_t i = 0; i < m; ++i) {
                const A value = loaded<T, Op, A>(element_at<T>(row, i), before);
                running[i] = r == 0 ? value : combine(operation, running[i], value);
            }
            for (std::size_t i = 0; i < m; ++i)
                put_element<T>(row, i, finished<T>(running[i], of_row, operation, power));
        }
    }
}

// Without rows it is the result of a rank that no other comes before.
template <class T, class Op>
void scan_elements(const reduce_args& args) {
    if (args.ranks == 0) {
        if constexpr (has_neutral<T, Op>)
            fill_neutral(dtype_traits<T>::id, args.out, args.count, Op::id, 1);
        return;
    }
    using as = decltype(canonical_reduction<T, Op>());
    reduce_args all = args;
    all.count *= as::each;
    scan_blocks<typename as::type, typename as::op>(all);
}

// Rank 0 has no result of an exscan by an operation of the user, so its output stays as it is. In a
// list of which some types have one, the others get back what was packed of them.
template <class Op, class... T>
void keep_output_of_first(operation& op, int rank) {
    if constexpr (!(has_neutral<T, Op> || ...))
        if (op.entry.kind == collective::exscan && rank == 0) op.unpack = nullptr;
}

template <class In, class Out, class Op>
struct scan_call : allreduce_call<In, Out, Op> {
    scan_call(collective kind, const In& in, const Out& out, const Op& f, int rank,
              const reduce_options& o)
        : allreduce_call<In, Out, Op>(in, out, f, o, kind) {
        this->group.function = &scan_elements<typename In::value_type, Op>;
        keep_output_of_first<Op, typename In::value_type>(this->op, rank);
    }
};

template <class Fused, class Op>
struct fused_scan_call : fused_allreduce_call<Fused, Op> {
    fused_scan_call(collective kind, const Fused& list, const Op& f, int rank,
                    const reduce_options& o, std::vector<tensor_ref>& tensors,
                    std::vector<std::size_t>& offsets)
        : fused_allreduce_call<Fused, Op>(list, f, o, tensors, offsets, kind) {
        [&]<class... T>(type_list<T...>) {
            std::size_t i = 0;
            ((this->groups[i++].function = &scan_elements<T, Op>), ...);
            keep_output_of_first<Op, T...>(this->op, rank);
        }(fused_types_t<Fused>{});
    }
};

// Owns its storage, for calls that outlive the function that makes them.
template <class Fused, class Op>
struct kept_fused_scan : fused_storage, fused_scan_call<Fused, Op> {
    kept_fused_scan(collective kind, const Fused& list, const Op& f, int rank,
                    const reduce_options& o)
        : fused_scan_call<Fused, Op>(kind, list, f, rank, o, this->tensors, this->offsets) {}
};

/// The members of a communicator for scan and exscan.
template <class Comm, class B>
class scan_calls {
public:
    /// Reduces `x` over this rank and all ranks before it, element by element, in place.
    ///
    /// Rank r gets the reduction of ranks 0 to r, in rank order: also with several nodes, where the
    /// bits do not depend on the nodes. `hvd::average` is the mean over these r + 1 ranks.
    /// **Collective**, **Buffers**, **Completion**, **Threads** and errors are as for `allreduce`,
    /// also for a `fuse(…)`. It is MPI_Scan (MPI 4.0, section 6.11).
    /// @snippet tests/docs/snippets.cpp scan
    template <class X, class Op = reduce_options>
    void scan(X&& x, const Op& op = {}, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, X, tensor_use::written>() && check_reduced<B, X, Op>())
            run_in_place(collective::scan, x, op, o);
    }

    /// Reduces `in` over this rank and all ranks before it into the caller's memory: `scan(in,
    /// into(out), op)`. `out` has as many elements, and may be written without `into`.
    ///
    /// Everything else is as in place. `out` may be exactly `in`.
    template <class In, class Out, class Op>
        requires(!std::convertible_to<Op, reduce_options> && !operation_like<Out>)
    void scan(const In& in, Out&& out, const Op& op, const reduce_options& o = {}) {
        if constexpr (check_arguments<const In&, Out, Op, tensor_use::read>())
            run_from(collective::scan, in, out, op, o);
    }
    template <class In, class View, class Op>
    void scan(const In& in, const into_view<View>& out, const Op& op,
              const reduce_options& o = {}) {
        scan(in, out.view, op, o);
    }

    /// Begins a scan in place. It is complete when the request is, and `x` stays untouched until
    /// then.
    template <class X, class Op = reduce_options>
    request scan_async(X&& x, const Op& op = {}, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, X, tensor_use::written>() && check_reduced<B, X, Op>())
            return start_in_place(collective::scan, x, op, o);
        return {};
    }

    /// Begins a scan from `in` to `out`. Both stay untouched until the request is complete.
    template <class In, class Out, class Op>
        requires(!std::convertible_to<Op, reduce_options> && !operation_like<Out>)
    request scan_async(In&& in, Out&& out, const Op& op, const reduce_options& o = {}) {
        if constexpr (check_arguments<In, Out, Op, tensor_use::kept>())
            return start_views(collective::scan, in, out, op, o);
        return {};
    }
    template <class In, class View, class Op>
    request scan_async(In&& in, const into_view<View>& out, const Op& op,
                       const reduce_options& o = {}) {
        return scan_async(std::forward<In>(in), out.view, op, o);
    }

    /// Reduces `x` over all ranks before this one, element by element, in place.
    ///
    /// Rank r gets the reduction of ranks 0 to r - 1. Rank 0 gets what changes no result: zeros of
    /// `hvd::sum`, ones of `hvd::product`, the largest number of `hvd::min`, …, and zeros of
    /// `hvd::average`. By a callable, and of types of the user, the `x` of rank 0 stays as it is.
    /// `hvd::average` is the mean over these r ranks. Everything else is as for `scan`. It is
    /// MPI_Exscan, in which the result of rank 0 is undefined.
    /// @snippet tests/docs/snippets.cpp exscan
    template <class X, class Op = reduce_options>
    void exscan(X&& x, const Op& op = {}, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, X, tensor_use::written>() && check_reduced<B, X, Op>())
            run_in_place(collective::exscan, x, op, o);
    }

    /// Reduces `in` over all ranks before this one into the caller's memory, as `scan` does. Rank 0
    /// gets the same as in place.
    template <class In, class Out, class Op>
        requires(!std::convertible_to<Op, reduce_options> && !operation_like<Out>)
    void exscan(const In& in, Out&& out, const Op& op, const reduce_options& o = {}) {
        if constexpr (check_arguments<const In&, Out, Op, tensor_use::read>())
            run_from(collective::exscan, in, out, op, o);
    }
    template <class In, class View, class Op>
    void exscan(const In& in, const into_view<View>& out, const Op& op,
                const reduce_options& o = {}) {
        exscan(in, out.view, op, o);
    }

    /// Begins an exscan in place. It is complete when the request is, and `x` stays untouched until
    /// then.
    template <class X, class Op = reduce_options>
    request exscan_async(X&& x, const Op& op = {}, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, X, tensor_use::written>() && check_reduced<B, X, Op>())
            return start_in_place(collective::exscan, x, op, o);
        return {};
    }

    /// Begins an exscan from `in` to `out`. Both stay untouched until the request is complete.
    template <class In, class Out, class Op>
        requires(!std::convertible_to<Op, reduce_options> && !operation_like<Out>)
    request exscan_async(In&& in, Out&& out, const Op& op, const reduce_options& o = {}) {
        if constexpr (check_arguments<In, Out, Op, tensor_use::kept>())
            return start_views(collective::exscan, in, out, op, o);
        return {};
    }
    template <class In, class View, class Op>
    request exscan_async(In&& in, const into_view<View>& out, const Op& op,
                         const reduce_options& o = {}) {
        return exscan_async(std::forward<In>(in), out.view, op, o);
    }

    // Numbers in braces are refused.
    template <class T, class... A>
    refused_call scan(std::initializer_list<T>&&, A&&...) {
        return refuse_braces<T>();
    }

    // An operation in brackets is refused.
    template <auto Op, class... A>
    refused_call scan(A&&...) {
        return refuse_operation_in_brackets<Op>();
    }

    // Numbers in braces are refused.
    template <class T, class... A>
    refused_call exscan(std::initializer_list<T>&&, A&&...) {
        return refuse_braces<T>();
    }

    // An operation in brackets is refused.
    template <auto Op, class... A>
    refused_call exscan(A&&...) {
        return refuse_operation_in_brackets<Op>();
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    int rank() { return access::session_of(self()).rank(); }

    template <class In, class Out, class Op, tensor_use Use>
    static constexpr bool check_arguments() {
        if constexpr (check_unfused<In, Out>() && check_tensor<B, In, Use>()) {
            if constexpr (check_tensor<B, Out, tensor_use::written>() &&
                          check_reduced<B, In, Op>()) {
                constexpr bool same = std::is_same_v<element_of<In>, element_of<Out>>;
                static_assert(same, "hvd: input and output have different element types");
                return same;
            }
        }
        return false;
    }

    template <class X, class Op>
    void run_in_place(collective kind, X& x, const Op& op, const reduce_options& o) {
        if constexpr (is_fused<std::remove_cvref_t<X>>) {
            run_made(self(), kind, o, [&] {
                workspace& work = access::session_of(self()).work();
                return fused_scan_call<std::remove_cvref_t<X>, operation_of<Op>>(
                    kind, x, as_operation(op), rank(), o, work.tensors, work.offsets);
            });
        } else {
            const auto view = view_for(self(), kind, o, x);
            run_views(kind, view, view, op, o);
        }
    }

    template <class X, class Op>
    request start_in_place(collective kind, X& x, const Op& op, const reduce_options& o) {
        if constexpr (is_fused<std::remove_cvref_t<X>>)
            return start_call(self(), kind, o, [&] {
                return kept_fused_scan<std::remove_cvref_t<X>, operation_of<Op>>(
                    kind, x, as_operation(op), rank(), o);
            });
        else return start_views(kind, x, x, op, o);
    }

    template <class In, class Out, class Op>
    void run_from(collective kind, const In& in, Out& out, const Op& op, const reduce_options& o) {
        run_views(kind, view_for(self(), kind, o, in), view_for(self(), kind, o, out), op, o);
    }

    template <class In, class Out, class Op>
    void run_views(collective kind, const In& in, const Out& out, const Op& op,
                   const reduce_options& o) {
        using O = operation_of<Op>;
        run_copying<O>(self(), kind, o, [&] {
            return scan_call<In, Out, O>(kind, in, out, as_operation(op), rank(), o);
        });
    }

    template <class In, class Out, class Op>
    request start_views(collective kind, In& in, Out& out, const Op& op, const reduce_options& o) {
        return start_call(self(), kind, o, [&] {
            return scan_call<view_of<In>, view_of<Out>, operation_of<Op>>(
                kind, to_view(in), to_view(out), as_operation(op), rank(), o);
        });
    }
};

}  // namespace hvd::inline v0::detail
