// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call/calls_base.hpp"
#include "call/gather_call.hpp"
#include "fused/fused_gather.hpp"

namespace hvd::inline v0::detail {

/// The members of a communicator for gather.
template <class Comm, class B>
class gather_calls {
public:
    /// Gives the root the tensors of all ranks, in rank order. The others get an empty result.
    ///
    /// First extents may differ. **Collective**, **Completion** and errors are as for `allgather`,
    /// plus the root.
    /// @snippet tests/docs/snippets.cpp gather
    template <class In>
        requires(!is_fused<In>)
    [[nodiscard("hvd: the result of the call is what it returns")]] auto gather(
        const In& in, root r = root{0}, const options& o = {}) {
        if constexpr (check_tensor<B, const In&>()) {
            using T = element_of<const In&>;
            gathered<T> result;
            gather_call<view_of<const In&>, gathered<T>*> call(
                collective::gather, view_for(self(), collective::gather, o, in), &result, r,
                own().rank() == r.rank, own().size(), o);
            run_rooted(self(), call, o);
            return result;
        } else {
            return refused_call();
        }
    }

    /// Gathers into the root's memory, which has room for exactly all elements. The others' memory
    /// is ignored. In place: the root's `in` is the part of `out` that receives its elements.
    template <class In, class View>
        requires(!is_fused<In>)
    void gather(const In& in, const into_view<View>& out, root r = root{0}, const options& o = {}) {
        if constexpr (check_unfused<View>() && check_tensor<B, const In&>()) {
            static_assert(std::is_same_v<element_of<const In&>, typename View::value_type>,
                          "hvd: input and output have different element types");
            gather_call<view_of<const In&>, given_memory> call(
                collective::gather, view_for(self(), collective::gather, o, in),
                memory_of(out, own().rank()), r, own().rank() == r.rank, own().size(), o);
            run_rooted(self(), call, o);
        }
    }

    /// Gathers several tensors at once. The root gets a tuple with the result of `gather` for each,
    /// and a vector of results for a runtime list; the others' results are empty. **Collective**
    /// and errors as `gather`.
    /// @snippet tests/docs/snippets.cpp fused_gather
    template <class... Parts>
    [[nodiscard("hvd: the result of the call is what it returns")]] auto gather(
        const fused<Parts...>& list, root r = root{0}, const options& o = {}) {
        results_of<gathered, fused<Parts...>> results;
        if constexpr (check_tensor<B, fused<Parts...>>()) {
            const auto held = access::hold(self(), collective::gather);
            auto call = prepare(own(), collective::gather, o, [&] {
                make_results(results, list);
                fused_memory& memory = own().work().fused;
                list_tensors(list, memory.tensors);
                return filled_fused<decltype(results), fused_gather_call>(results, memory, o,
                                                                          at(r));
            });
            run_call(self(), call, o);
        }
        return results;
    }

    /// Gathers several tensors into the root's: `gather(fuse(a, b), into(fuse(all_a, all_b)))`. The
    /// others' memory is ignored.
    template <class... Parts, class... Outs>
    void gather(const fused<Parts...>& list, const into_view<fused<Outs...>>& out, root r = root{0},
                const options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>())
            run_made(self(), collective::gather, o, [&] {
                fused_memory& memory = own().work().fused;
                list_tensors(list, memory.tensors);
                list_tensors(out.view, memory.outputs);
                return fused_gather_into_call(memory, own().rank(), o, at(r));
            });
    }

    /// Begins a gather with new memory on the root.
    template <class In>
        requires(!is_fused<std::remove_cvref_t<In>>)
    auto gather_async(In&& in, root r = root{0}, const options& o = {}) {
        if constexpr (check_tensor<B, In, tensor_use::kept>()) {
            using T = element_of<In>;
            return start_call_for<gathered<T>>(
                self(), collective::gather, o, [&](gathered<T>& value) {
                    return gather_call<view_of<In>, gathered<T>*>(collective::gather, to_view(in),
                                                                  &value, r, own().rank() == r.rank,
                                                                  own().size(), o);
                });
        } else {
            return refused_call();
        }
    }

    /// Begins a gather into the root's memory.
    template <class In, class View>
        requires(!is_fused<std::remove_cvref_t<In>>)
    request gather_async(In&& in, const into_view<View>& out, root r = root{0},
                         const options& o = {}) {
        if constexpr (check_unfused<View>() && check_tensor<B, In, tensor_use::kept>())
            return start_call(self(), collective::gather, o, [&] {
                return gather_call<view_of<In>, given_memory>(
                    collective::gather, to_view(in), memory_of(out, own().rank()), r,
                    own().rank() == r.rank, own().size(), o);
            });
        return {};
    }

    /// Begins a gather of several tensors with new memory on the root. `wait()` returns a tuple.
    template <class... Parts>
    auto gather_async(const fused<Parts...>& list, root r = root{0}, const options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>()) {
            using Results = results_of<gathered, fused<Parts...>>;
            return start_call_for<Results>(self(), collective::gather, o, [&](Results& results) {
                make_results(results, list);
                return kept_fused<Results, fused_gather_call>(memory_for(list), results, o, at(r));
            });
        } else {
            return refused_call();
        }
    }

    /// Begins a gather of several tensors into the root's.
    template <class... Parts, class... Outs>
    request gather_async(const fused<Parts...>& list, const into_view<fused<Outs...>>& out,
                         root r = root{0}, const options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>())
            return start_call(self(), collective::gather, o, [&] {
                return with_memory<fused_gather_into_call>(memory_for(list, out.view), own().rank(),
                                                           o, at(r));
            });
        return {};
    }

    // An output without hvd::into is refused.
    template <class In, bare_output Out, class... A>
        requires(!pointer_like<In>)
    refused_call gather(const In&, Out&&, A&&...) {
        static_assert(has_into<Out>, "hvd: the memory of the result is marked: hvd::into(out)");
        return {};
    }

    // A pointer and a count are refused with the words of check_tensor.
    template <pointer_like P, class... A>
    refused_call gather(P&&, A&&...) {
        check_tensor<B, P>();
        return {};
    }

    // Numbers in braces are refused.
    template <class T, class... A>
    refused_call gather(std::initializer_list<T>&&, A&&...) {
        return refuse_braces<T>();
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }
    receivers at(root r) { return {collective::gather, r, own().rank(), own().size()}; }
};

}  // namespace hvd::inline v0::detail
