// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call/calls_base.hpp"
#include "call/distribution.hpp"
#include "call/split_rows.hpp"
#include "fused/fused_distribute.hpp"

namespace hvd::inline v0::detail {

template <class In, class Result>
struct scatter_call : distribute_call<In, Result> {
    scatter_call(const In& in, const given_counts& given, Result to, root r, int rank, int size,
                 workspace* lender, const options& o)
        : distribute_call<In, Result>(collective::scatter, in, to, lender, o, rank == r.rank) {
        this->check_root(r.rank, size);
        if constexpr (std::is_same_v<Result, given_memory>) this->op.room = to.count;
        if (rank != r.rank) return;
        if (given) this->split_by(given, in.size(), size);
        else split_rows_into(in, size);
        if constexpr (std::is_same_v<Result, given_memory>)
            check_place(bytes_of(in), in.size() * sizeof(typename In::value_type), to);
    }

private:
    // Peers read the input while this rank's slice is copied. So the output may overlap the input
    // only in this rank's own slice.
    void check_place(const std::byte* in, std::size_t bytes, const given_memory& out) {
        const std::size_t each = this->op.element_bytes;
        std::size_t own = 0;
        for (std::size_t r = 0; r < std::size_t(out.rank) && r < this->op.counts.size(); ++r)
            own += this->op.counts[r] * each;
        if (out.data == in + own) return;
        this->check_overlap(in, out.data, bytes, out.count * each);
    }

    // Splits as reduce_scatter does: the first (rows % size) ranks get one row more.
    void split_rows_into(const In& in, int size) {
        this->counts.resize(std::size_t(size) + 1);
        split_rows(in, size, this->counts.data());
        for (std::size_t r = 0; r < std::size_t(size); ++r)
            this->counts[r] = this->counts[r + 1] - this->counts[r];
        this->counts.pop_back();
        this->op.counts = this->counts;
    }
};

/// The members of a communicator for scatter.
template <class Comm, class B>
class scatter_calls {
public:
    /// Splits the root's `in` among the ranks, in rank order. Each rank gets its slice.
    ///
    /// The slices are whole rows, split evenly. The first `rows % size` ranks get one more.
    /// **Collective**: all ranks, in the same order of calls, with equal element type and root.
    /// **Buffers**: `in` is read on the root. On the others only its element type matters. The
    /// result is new memory.
    /// @throws as `allreduce`.
    /// @snippet tests/docs/snippets.cpp scatter
    template <class In>
    [[nodiscard("hvd: the result of the call is what it returns")]] auto scatter(
        const In& in, root r = root{0}, const options& o = {}) {
        if constexpr (check_unfused<In>() && check_tensor<B, const In&>())
            return run_new(in, {}, r, o);
        else return refused_call();
    }

    /// Scatters the root's `counts[r]` elements to rank r. The others' counts are ignored.
    template <class In, class Counts>
        requires is_range<const Counts>
    [[nodiscard("hvd: the result of the call is what it returns")]] auto scatter(
        const In& in, const Counts& counts, root r = root{0}, const options& o = {}) {
        if constexpr (check_unfused<In>() && check_tensor<B, const In&>())
            return run_new(in, given_counts(counts), r, o);
        else return refused_call();
    }

    /// Scatters evenly into the caller's memory, which has exactly the size of this rank's slice.
    /// In place: the root's `out` is its slice of `in`.
    template <class In, class View>
    void scatter(const In& in, const into_view<View>& out, root r = root{0},
                 const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, const In&>() &&
                      check_same_elements<const In&, View>())
            run_into(in, {}, out, r, o);
    }

    /// Scatters by the root's counts into the caller's memory, which has exactly the size of this
    /// rank's slice.
    template <class In, class Counts, class View>
        requires is_range<const Counts>
    void scatter(const In& in, const Counts& counts, const into_view<View>& out, root r = root{0},
                 const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, const In&>() &&
                      check_same_elements<const In&, View>())
            run_into(in, given_counts(counts), out, r, o);
    }

    /// Scatters several tensors of the root at once, each as `scatter` alone does. It returns a
    /// tuple with a vector for each tensor, and a vector of vectors for a runtime list. The others
    /// name as many tensors of the same element types, which may be empty. **Collective** and
    /// errors as `scatter`.
    /// @snippet tests/docs/snippets.cpp fused_scatter
    template <class... Parts>
    [[nodiscard("hvd: the result of the call is what it returns")]] auto scatter(
        const fused<Parts...>& list, root r = root{0}, const options& o = {}) {
        results_of<stored_vector, fused<Parts...>> results;
        if constexpr (check_tensor<B, fused<Parts...>>())
            run_fused_distribute(self(), collective::scatter, list, results, r, o);
        return results;
    }

    /// Scatters several tensors of the root into the caller's: `scatter(fuse(a, b), into(fuse(x,
    /// y)))`. Each tensor of `into` has exactly the size of this rank's slice. In place: the root's
    /// `x` is its slice of `a`.
    template <class... Parts, class... Outs>
    void scatter(const fused<Parts...>& list, const into_view<fused<Outs...>>& out,
                 root r = root{0}, const options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>())
            run_fused_distribute_into(self(), collective::scatter, list, out.view, r, o);
    }

    /// Begins an even scatter with new memory. The result is complete when `wait()` returns it.
    template <class In>
        requires(!is_fused<std::remove_cvref_t<In>>)
    auto scatter_async(In&& in, root r = root{0}, const options& o = {}) {
        if constexpr (check_unfused<In>() && check_tensor<B, In, tensor_use::kept>())
            return start_new(std::forward<In>(in), {}, r, o);
        else return refused_call();
    }

    /// Begins a scatter by the root's counts, which are copied, with new memory.
    template <class In, class Counts>
        requires is_range<const Counts>
    auto scatter_async(In&& in, const Counts& counts, root r = root{0}, const options& o = {}) {
        if constexpr (check_unfused<In>() && check_tensor<B, In, tensor_use::kept>())
            return start_new(std::forward<In>(in), given_counts(counts), r, o);
        else return refused_call();
    }

    /// Begins an even scatter into the caller's memory.
    template <class In, class View>
        requires(!are_fused<In, View>)
    request scatter_async(In&& in, const into_view<View>& out, root r = root{0},
                          const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, In, tensor_use::kept>() &&
                      check_same_elements<In, View>())
            return start_into(std::forward<In>(in), {}, out, r, o);
        return {};
    }

    /// Begins a scatter by the root's counts, which are copied, into the caller's memory.
    template <class In, class Counts, class View>
        requires is_range<const Counts>
    request scatter_async(In&& in, const Counts& counts, const into_view<View>& out,
                          root r = root{0}, const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, In, tensor_use::kept>() &&
                      check_same_elements<In, View>())
            return start_into(std::forward<In>(in), given_counts(counts), out, r, o);
        return {};
    }

    /// Begins a scatter of several tensors with new memory. `wait()` returns a tuple.
    template <class... Parts>
    auto scatter_async(const fused<Parts...>& list, root r = root{0}, const options& o = {}) {
        using Results = results_of<stored_vector, fused<Parts...>>;
        if constexpr (check_tensor<B, fused<Parts...>>())
            return start_fused_distribute<Results>(self(), collective::scatter, list, r, o);
        else return refused_call();
    }

    /// Begins a scatter of several tensors into the caller's.
    template <class... Parts, class... Outs>
    request scatter_async(const fused<Parts...>& list, const into_view<fused<Outs...>>& out,
                          root r = root{0}, const options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>())
            return start_fused_distribute_into(self(), collective::scatter, list, out.view, r, o);
        return {};
    }

    // An output without hvd::into is refused.
    template <class In, class Counts, bare_output Out, class... A>
        requires(!pointer_like<In>)
    refused_call scatter(const In&, const Counts&, Out&&, A&&...) {
        static_assert(has_into<Out>, "hvd: the memory of the result is marked: hvd::into(out)");
        return {};
    }

    template <class... Parts, class... Outs, class... A>
    refused_call scatter(const fused<Parts...>&, const fused<Outs...>&, A&&...) {
        static_assert(has_into<fused<Outs...>>,
                      "hvd: the memory of the result is marked: hvd::into(out)");
        return {};
    }

    // A pointer and a count are refused with the words of check_tensor.
    template <pointer_like P, class... A>
    refused_call scatter(P&&, A&&...) {
        check_tensor<B, P>();
        return {};
    }

    // Numbers in braces are refused.
    template <class T, class... A>
    refused_call scatter(std::initializer_list<T>&&, A&&...) {
        return refuse_braces<T>();
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }

    template <class In>
    auto run_new(const In& in, const given_counts& counts, root r, const options& o) {
        std::vector<stored<element_of<const In&>>> result;
        run_made(self(), collective::scatter, o, [&] {
            return scatter_call<view_of<const In&>, decltype(result)*>(
                to_view(in), counts, &result, r, own().rank(), own().size(), &own().work(), o);
        });
        return result;
    }

    template <class In, class View>
    void run_into(const In& in, const given_counts& counts, const into_view<View>& out, root r,
                  const options& o) {
        run_made(self(), collective::scatter, o, [&] {
            return scatter_call<view_of<const In&>, given_memory>(
                to_view(in), counts, memory_of(out, own().rank()), r, own().rank(), own().size(),
                &own().work(), o);
        });
    }

    template <class In>
    auto start_new(In&& in, const given_counts& counts, root r, const options& o) {
        using Values = std::vector<stored<element_of<In>>>;
        return start_call_for<Values>(self(), collective::scatter, o, [&](Values& value) {
            return scatter_call<view_of<In>, Values*>(to_view(in), counts, &value, r, own().rank(),
                                                      own().size(), nullptr, o);
        });
    }

    template <class In, class View>
    request start_into(In&& in, const given_counts& counts, const into_view<View>& out, root r,
                       const options& o) {
        return start_call(self(), collective::scatter, o, [&] {
            return scatter_call<view_of<In>, given_memory>(to_view(in), counts,
                                                           memory_of(out, own().rank()), r,
                                                           own().rank(), own().size(), nullptr, o);
        });
    }
};

}  // namespace hvd::inline v0::detail
