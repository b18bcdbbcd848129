// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call/calls_base.hpp"
#include "call/distribution.hpp"
#include "fused/fused_scatter.hpp"

namespace hvd::inline v0::detail {

template <class In, class Op>
struct reduce_scatter_call : distribution {
    Op function;
    using T = typename In::value_type;
    packed_tensor input;
    reduction_group group;

    reduce_scatter_call(const In& in, const Op& f, const given_counts& given, int size,
                        workspace* lender, const reduce_options& o)
        : distribution(collective::reduce_scatter, o.name, lender), function(f) {
        this->describe(in);
        describe_operation(op, function, o.prescale, o.postscale);
        group = group_of<T>(op, function, 0, in.size());
        if (given) {
            this->split_by(given, in.size(), size);
            this->agree_on_counts();
            group.bounds = this->bounds_of_counts(size);
        } else if constexpr (In::rank() > 1) {
            this->counts.resize(std::size_t(size) + 1);
            split_rows(in, size, this->counts.data());
            group.bounds = this->counts.data();
        }
        op.groups = &group;
        op.group_count = 1;
        op.in = bytes_of(in);
        if constexpr (is_strided<In>) {
            input.tensor = erase(in);
            op.inputs = {&input.tensor, 1};
            op.buffer_bytes = in.size() * sizeof(T);
            op.in = nullptr;
            op.self = this;
            op.pack = [](void* self, operation& current) {
                packed_tensor::pack_into_buffer(&static_cast<reduce_scatter_call*>(self)->input,
                                                current);
            };
        }
    }

    // Sets the output. It may only overlap this rank's own slice of the input.
    void set_output(std::byte* out, std::size_t count, int rank, int size) {
        const std::size_t part = group.count_of(rank, size);
        op.out = out;
        if (count != part)
            this->refuse(text("hvd: ", op.entry.label(), " on rank ", rank,
                              ": into() has room for ", count, " elements, this rank's part has ",
                              part));
        if (op.in != nullptr && out != group.slice_of(op.in, rank, size).data)
            this->check_overlap(op.in, out, group.count * sizeof(T), count * sizeof(T));
    }
};

// With its output: new memory, or the caller's.
template <class In, class Op>
struct made_reduce_scatter : reduce_scatter_call<In, Op> {
    using T = typename In::value_type;

    made_reduce_scatter(const In& in, const Op& f, const given_counts& given,
                        std::vector<stored<T>>& out, int rank, int size, workspace* lender,
                        const reduce_options& o)
        : reduce_scatter_call<In, Op>(in, f, given, size, lender, o) {
        if (!this->op.entry.refused) out.resize(this->group.count_of(rank, size));
        this->set_output(reinterpret_cast<std::byte*>(out.data()), out.size(), rank, size);
    }
    template <class View>
    made_reduce_scatter(const In& in, const Op& f, const given_counts& given,
                        const into_view<View>& out, int rank, int size, workspace* lender,
                        const reduce_options& o)
        : reduce_scatter_call<In, Op>(in, f, given, size, lender, o) {
        this->set_output(bytes_of(out.view), out.view.size(), rank, size);
    }
};

/// The members of a communicator for reduce_scatter.
template <class Comm, class B>
class reduce_scatter_calls {
public:
    /// Reduces `in` over all ranks and gives each rank its slice of the result.
    ///
    /// The slices are whole rows (of a one-dimensional tensor: elements) in rank order, split
    /// evenly. The first `rows % size` ranks get one more. **Collective**, **Buffers** (`in` is
    /// read), **Completion** and errors are as for `allreduce`. Horovod: `reducescatter`.
    /// @snippet tests/docs/snippets.cpp reduce_scatter
    template <class In, class Op = reduce_options>
        requires(!is_fused<In>)
    [[nodiscard("hvd: the result of the call is what it returns")]] auto reduce_scatter(
        const In& in, const Op& op = {}, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, const In&>() && check_reduced<B, const In&, Op>()) {
            std::vector<stored<element_of<const In&>>> result;
            run_view(view_of_input(in, o), op, {}, result, o);
            return result;
        } else {
            return refused_call();
        }
    }

    /// Reduces and scatters into the caller's memory, which has exactly the size of this rank's
    /// slice. It may be this rank's slice of `in`.
    template <class In, class Op, class View>
        requires(!is_fused<In>)
    void reduce_scatter(const In& in, const Op& op, const into_view<View>& out,
                        const reduce_options& o = {}) {
        if constexpr (check_tensor<B, const In&>() && check_reduced<B, const In&, Op>()) {
            static_assert(std::is_same_v<element_of<const In&>, typename View::value_type>,
                          "hvd: input and output have different element types");
            run_view(view_of_input(in, o), op, {}, out, o);
        }
    }

    /// Reduces, and gives `counts[r]` elements of the result to each rank r, in the order of the
    /// ranks. The counts are integers of any type, also 0, equal on all ranks, and add up to the
    /// whole of `in`. **Collective**, **Buffers** and **Completion** as without counts. MPI:
    /// `MPI_Reduce_scatter`.
    /// @throws as `allreduce`; hvd::usage_error for counts that are negative or do not add up;
    /// hvd::mismatch_error for different ones.
    /// @snippet tests/docs/snippets.cpp reduce_scatter
    template <class In, class Op, counts_like Counts>
        requires(!is_fused<In>)
    [[nodiscard("hvd: the result of the call is what it returns")]] auto reduce_scatter(
        const In& in, const Op& op, const Counts& counts, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, const In&>() && check_reduced<B, const In&, Op>()) {
            std::vector<stored<element_of<const In&>>> result;
            run_view(view_of_input(in, o), op, given_counts(counts), result, o);
            return result;
        } else {
            return refused_call();
        }
    }

    /// Reduces and scatters by counts into the caller's memory, which has exactly the size of this
    /// rank's slice. It may be this rank's slice of `in`.
    template <class In, class Op, counts_like Counts, class View>
        requires(!is_fused<In>)
    void reduce_scatter(const In& in, const Op& op, const Counts& counts,
                        const into_view<View>& out, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, const In&>() && check_reduced<B, const In&, Op>() &&
                      check_same_elements<const In&, View>())
            run_view(view_of_input(in, o), op, given_counts(counts), out, o);
    }

    /// Reduces and scatters several tensors at once. It returns a tuple with the result of
    /// `reduce_scatter` for each.
    /// **Collective** and errors as `reduce_scatter`. Horovod: `grouped_reducescatter`.
    template <class... Parts, class Op>
    [[nodiscard("hvd: the result of the call is what it returns")]] auto reduce_scatter(
        const fused<Parts...>& list, const Op& op, const reduce_options& o = {}) {
        results_of<stored_vector, fused<Parts...>> results;
        if constexpr (check_tensor<B, fused<Parts...>>() && check_reduced<B, fused<Parts...>, Op>())
            run_list(list, op, o, [&](auto& call) { call.set_results(results, list); });
        return results;
    }

    /// Reduces and scatters several tensors into the caller's.
    template <class... Parts, class Op, class... Outs>
    void reduce_scatter(const fused<Parts...>& list, const Op& op,
                        const into_view<fused<Outs...>>& out, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>() && check_reduced<B, fused<Parts...>, Op>())
            run_list(list, op, o, [&](auto& call) { call.set_outputs(out.view); });
    }

    /// Begins a reduce_scatter with new memory. The result is complete when `wait()` returns it.
    template <class In, class Op>
        requires(!is_fused<std::remove_cvref_t<In>>)
    auto reduce_scatter_async(In&& in, const Op& op, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, In, tensor_use::kept>() && check_reduced<B, In, Op>()) {
            using Values = std::vector<stored<element_of<In>>>;
            return start_call_for<Values>(
                self(), collective::reduce_scatter, o, [&](Values& value) {
                    return made_reduce_scatter<view_of<In>, operation_of<Op>>(
                        to_view(in), as_operation(op), {}, value, own().rank(), own().size(),
                        nullptr, o);
                });
        } else {
            return refused_call();
        }
    }

    /// Begins a reduce_scatter by counts, which are copied, with new memory.
    template <class In, class Op, counts_like Counts>
        requires(!is_fused<std::remove_cvref_t<In>>)
    auto reduce_scatter_async(In&& in, const Op& op, const Counts& counts,
                              const reduce_options& o = {}) {
        if constexpr (check_tensor<B, In, tensor_use::kept>() && check_reduced<B, In, Op>()) {
            using Values = std::vector<stored<element_of<In>>>;
            return start_call_for<Values>(
                self(), collective::reduce_scatter, o, [&](Values& value) {
                    return made_reduce_scatter<view_of<In>, operation_of<Op>>(
                        to_view(in), as_operation(op), given_counts(counts), value, own().rank(),
                        own().size(), nullptr, o);
                });
        } else {
            return refused_call();
        }
    }

    /// Begins a reduce_scatter into the caller's memory.
    template <class In, class Op, class View>
        requires(!is_fused<std::remove_cvref_t<In>>)
    request reduce_scatter_async(In&& in, const Op& op, const into_view<View>& out,
                                 const reduce_options& o = {}) {
        if constexpr (check_tensor<B, In, tensor_use::kept>() && check_reduced<B, In, Op>())
            return start_call(self(), collective::reduce_scatter, o, [&] {
                return made_reduce_scatter<view_of<In>, operation_of<Op>>(
                    to_view(in), as_operation(op), {}, out, own().rank(), own().size(), nullptr, o);
            });
        return {};
    }

    /// Begins a reduce_scatter by counts, which are copied, into the caller's memory.
    template <class In, class Op, counts_like Counts, class View>
        requires(!is_fused<std::remove_cvref_t<In>>)
    request reduce_scatter_async(In&& in, const Op& op, const Counts& counts,
                                 const into_view<View>& out, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, In, tensor_use::kept>() && check_reduced<B, In, Op>() &&
                      check_same_elements<In, View>())
            return start_call(self(), collective::reduce_scatter, o, [&] {
                return made_reduce_scatter<view_of<In>, operation_of<Op>>(
                    to_view(in), as_operation(op), given_counts(counts), out, own().rank(),
                    own().size(), nullptr, o);
            });
        return {};
    }

    /// Begins a reduce_scatter of several tensors with new memory. `wait()` returns a tuple.
    template <class... Parts, class Op>
    auto reduce_scatter_async(const fused<Parts...>& list, const Op& op,
                              const reduce_options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>() &&
                      check_reduced<B, fused<Parts...>, Op>()) {
            using Call = kept_fused_reduce_scatter<fused<Parts...>, operation_of<Op>>;
            using Results = typename Call::results;
            return start_call_for<Results>(
                self(), collective::reduce_scatter, o, [&](Results& results) {
                    return Call(list, as_operation(op), results, own().rank(), own().size(), o);
                });
        }
    }

    /// Begins a reduce_scatter of several tensors into the caller's.
    template <class... Parts, class Op, class... Outs>
    request reduce_scatter_async(const fused<Parts...>& list, const Op& op,
                                 const into_view<fused<Outs...>>& out,
                                 const reduce_options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>() && check_reduced<B, fused<Parts...>, Op>())
            return start_call(self(), collective::reduce_scatter, o, [&] {
                return kept_fused_reduce_scatter<fused<Parts...>, operation_of<Op>>(
                    list, as_operation(op), out.view, own().rank(), own().size(), o);
            });
        return {};
    }

    // An output without hvd::into is refused.
    template <class In, class Op, bare_output Out, class... A>
        requires(!pointer_like<In> && !counts_like<Out>)
    refused_call reduce_scatter(const In&, const Op&, Out&&, A&&...) {
        static_assert(has_into<Out>, "hvd: the memory of the result is marked: hvd::into(out)");
        return {};
    }

    // The order of allreduce is refused: counts and the result go with the operation.
    template <class In, class View, operation_like Op, class... A>
        requires(!pointer_like<In>)
    refused_call reduce_scatter(const In&, const into_view<View>&, const Op&, A&&...) {
        static_assert(!operation_like<Op>,
                      "hvd: the operation comes before the result: reduce_scatter(x, hvd::sum, "
                      "hvd::into(out))");
        return {};
    }

    // A pointer and a count are refused with the words of check_tensor.
    template <pointer_like P, class... A>
    refused_call reduce_scatter(P&&, A&&...) {
        check_tensor<B, P>();
        return {};
    }

    // Numbers in braces are refused.
    template <class T, class... A>
    refused_call reduce_scatter(std::initializer_list<T>&&, A&&...) {
        return refuse_braces<T>();
    }

    // An operation in brackets is refused.
    template <auto Op, class... A>
    refused_call reduce_scatter(A&&...) {
        return refuse_operation_in_brackets<Op>();
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }

    template <class In>
    auto view_of_input(const In& in, const reduce_options& o) {
        return view_for(self(), collective::reduce_scatter, o, in);
    }

    template <class In, class Op, class Out>
    void run_view(const In& in, const Op& op, const given_counts& counts, Out& out,
                  const reduce_options& o) {
        run_made(self(), collective::reduce_scatter, o, [&] {
            return made_reduce_scatter<In, operation_of<Op>>(
                in, as_operation(op), counts, out, own().rank(), own().size(), &own().work(), o);
        });
    }

    // `set` gives the call its output.
    template <class Fused, class Op, class Set>
    void run_list(const Fused& list, const Op& op, const reduce_options& o, Set set) {
        const auto held = access::hold(self(), collective::reduce_scatter);
        auto call = prepare(own(), collective::reduce_scatter, o, [&] {
            return fused_reduce_scatter_call<Fused, operation_of<Op>>(
                own().work().fused, list, as_operation(op), own().rank(), own().size(), o);
        });
        prepare(own(), collective::reduce_scatter, o, [&] { set(call); });
        run_call(self(), call, o);
    }
};

}  // namespace hvd::inline v0::detail
