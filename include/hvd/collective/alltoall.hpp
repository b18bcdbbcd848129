// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call/calls_base.hpp"
#include "call/distribution.hpp"
#include "fused/fused_distribute.hpp"

namespace hvd::inline v0::detail {

template <class In, class Result>
struct alltoall_call : distribute_call<In, Result> {
    alltoall_call(const In& in, const given_counts& given, Result to, int size, workspace* lender,
                  const options& o)
        : distribute_call<In, Result>(collective::alltoall, in, to, lender, o) {
        if (given) this->split_by(given, in.size(), size);
        else this->split_equally(In::rank() == 0 ? 1 : in.extent(0), in.size(), size);
        if constexpr (std::is_same_v<Result, given_memory> && !is_strided<In>) {
            const std::size_t each = this->op.element_bytes;
            this->check_overlap(this->op.in, to.data, in.size() * each, to.count * each);
            if (this->op.in == to.data) this->send_copy(in);  // in place
        }
    }
};

/// The members of a communicator for alltoall.
template <class Comm, class B>
class alltoall_calls {
public:
    /// Sends `counts[r]` elements to each rank r, in the order of the ranks, and returns the
    /// elements that come from all ranks.
    ///
    /// **Collective**: all ranks, in the same order of calls. Every rank has its own counts:
    /// integers of any type, also 0.
    /// **Buffers**: `in` is read; the result is new memory. Counts are elements and add up to the
    /// whole of `in`.
    /// @throws as `allreduce`; hvd::usage_error for counts that are negative or do not add up.
    /// @snippet tests/docs/snippets.cpp alltoall
    template <class In, class Counts>
        requires is_range<const Counts>
    [[nodiscard("hvd: the result of the call is what it returns")]] auto alltoall(
        const In& in, const Counts& counts, const options& o = {}) {
        if constexpr (check_unfused<In>() && check_tensor<B, const In&>())
            return run_new(in, given_counts(counts), o);
        else return refused_call();
    }

    /// Sends every rank an equal share of `in`.
    template <class In>
    [[nodiscard("hvd: the result of the call is what it returns")]] auto alltoall(
        const In& in, const options& o = {}) {
        if constexpr (check_unfused<In>() && check_tensor<B, const In&>())
            return run_new(in, {}, o);
        else return refused_call();
    }

    /// Sends by counts, and receives into the caller's memory, which has room for exactly the
    /// elements that come. In place: `in` is the whole of `out`, and is copied first.
    template <class In, class Counts, class View>
        requires is_range<const Counts>
    void alltoall(const In& in, const Counts& counts, const into_view<View>& out,
                  const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, const In&>() &&
                      check_same_elements<const In&, View>())
            run_into(in, given_counts(counts), out, o);
    }

    /// Sends equal shares, and receives into the caller's memory.
    template <class In, class View>
    void alltoall(const In& in, const into_view<View>& out, const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, const In&>() &&
                      check_same_elements<const In&, View>())
            run_into(in, {}, out, o);
    }

    /// Sends every rank an equal share of each of several tensors. It returns a tuple with the
    /// result of `alltoall` for each; a runtime list gives a vector of results. The ranks give as
    /// many tensors, whose first extents may differ. **Collective** and errors as `alltoall`.
    /// @snippet tests/docs/snippets.cpp fused_alltoall
    template <class... Parts>
    [[nodiscard("hvd: the result of the call is what it returns")]] auto alltoall(
        const fused<Parts...>& list, const options& o = {}) {
        results_of<gathered, fused<Parts...>> results;
        if constexpr (check_tensor<B, fused<Parts...>>())
            run_fused_distribute(self(), collective::alltoall, list, results, root{}, o);
        return results;
    }

    /// Exchanges equal shares of several tensors into the caller's: `alltoall(fuse(a, b),
    /// into(fuse(x, y)))`. In place: a tensor of the list is the whole of its output.
    template <class... Parts, class... Outs>
    void alltoall(const fused<Parts...>& list, const into_view<fused<Outs...>>& out,
                  const options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>())
            run_fused_distribute_into(self(), collective::alltoall, list, out.view, root{}, o);
    }

    /// Begins an alltoall with counts and new memory. The result is complete when `wait()` returns
    /// it. The counts are copied.
    template <class In, class Counts>
        requires is_range<const Counts>
    auto alltoall_async(In&& in, const Counts& counts, const options& o = {}) {
        if constexpr (check_unfused<In>() && check_tensor<B, In, tensor_use::kept>())
            return start_new(std::forward<In>(in), given_counts(counts), o);
        else return refused_call();
    }

    /// Begins an alltoall of equal shares with new memory.
    template <class In>
        requires(!is_fused<std::remove_cvref_t<In>>)
    auto alltoall_async(In&& in, const options& o = {}) {
        if constexpr (check_unfused<In>() && check_tensor<B, In, tensor_use::kept>())
            return start_new(std::forward<In>(in), {}, o);
        else return refused_call();
    }

    /// Begins an alltoall with counts, which are copied, into the caller's memory.
    template <class In, class Counts, class View>
        requires is_range<const Counts>
    request alltoall_async(In&& in, const Counts& counts, const into_view<View>& out,
                           const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, In, tensor_use::kept>() &&
                      check_same_elements<In, View>())
            return start_into(std::forward<In>(in), given_counts(counts), out, o);
        return {};
    }

    /// Begins an alltoall of equal shares into the caller's memory.
    template <class In, class View>
        requires(!are_fused<In, View>)
    request alltoall_async(In&& in, const into_view<View>& out, const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, In, tensor_use::kept>() &&
                      check_same_elements<In, View>())
            return start_into(std::forward<In>(in), {}, out, o);
        return {};
    }

    /// Begins an alltoall of several tensors with new memory. `wait()` returns a tuple.
    template <class... Parts>
    auto alltoall_async(const fused<Parts...>& list, const options& o = {}) {
        using Results = results_of<gathered, fused<Parts...>>;
        if constexpr (check_tensor<B, fused<Parts...>>())
            return start_fused_distribute<Results>(self(), collective::alltoall, list, root{}, o);
        else return refused_call();
    }

    /// Begins an alltoall of several tensors into the caller's.
    template <class... Parts, class... Outs>
    request alltoall_async(const fused<Parts...>& list, const into_view<fused<Outs...>>& out,
                           const options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>())
            return start_fused_distribute_into(self(), collective::alltoall, list, out.view, root{},
                                               o);
        return {};
    }

    // An output without hvd::into is refused.
    template <class In, class Counts, bare_output Out, class... A>
        requires(!pointer_like<In>)
    refused_call alltoall(const In&, const Counts&, Out&&, A&&...) {
        static_assert(has_into<Out>, "hvd: the memory of the result is marked: hvd::into(out)");
        return {};
    }

    template <class... Parts, class... Outs, class... A>
    refused_call alltoall(const fused<Parts...>&, const fused<Outs...>&, A&&...) {
        static_assert(has_into<fused<Outs...>>,
                      "hvd: the memory of the result is marked: hvd::into(out)");
        return {};
    }

    // A pointer and a count are refused with the words of check_tensor.
    template <pointer_like P, class... A>
    refused_call alltoall(P&&, A&&...) {
        check_tensor<B, P>();
        return {};
    }

    // Numbers in braces are refused.
    template <class T, class... A>
    refused_call alltoall(std::initializer_list<T>&&, A&&...) {
        return refuse_braces<T>();
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }

    template <class In>
    auto run_new(const In& in, const given_counts& counts, const options& o) {
        using T = element_of<const In&>;
        gathered<T> result;
        run_made(self(), collective::alltoall, o, [&] {
            return alltoall_call<view_of<const In&>, gathered<T>*>(to_view(in), counts, &result,
                                                                   own().size(), &own().work(), o);
        });
        return result;
    }

    template <class In, class View>
    void run_into(const In& in, const given_counts& counts, const into_view<View>& out,
                  const options& o) {
        run_made(self(), collective::alltoall, o, [&] {
            return alltoall_call<view_of<const In&>, given_memory>(
                to_view(in), counts, memory_of(out, own().rank()), own().size(), &own().work(), o);
        });
    }

    template <class In>
    auto start_new(In&& in, const given_counts& counts, const options& o) {
        using T = element_of<In>;
        return start_call_for<gathered<T>>(
            self(), collective::alltoall, o, [&](gathered<T>& value) {
                return alltoall_call<view_of<In>, gathered<T>*>(to_view(in), counts, &value,
                                                                own().size(), nullptr, o);
            });
    }

    template <class In, class View>
    request start_into(In&& in, const given_counts& counts, const into_view<View>& out,
                       const options& o) {
        return start_call(self(), collective::alltoall, o, [&] {
            return alltoall_call<view_of<In>, given_memory>(
                to_view(in), counts, memory_of(out, own().rank()), own().size(), nullptr, o);
        });
    }
};

}  // namespace hvd::inline v0::detail
