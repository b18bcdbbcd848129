// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call/calls_base.hpp"
#include "call/gather_call.hpp"
#include "fused/fused_gather.hpp"

namespace hvd::inline v0::detail {

/// The members of a communicator for allgather.
template <class Comm, class B>
class allgather_calls {
public:
    /// Gives every rank the tensors of all ranks, in rank order.
    ///
    /// The first extents may differ between ranks and may be 0. The others are equal. A C++ scalar
    /// is a tensor of one element.
    /// **Collective**: all ranks, in the same order of calls.
    /// **Buffers**: `in` is read; the result is new memory, in elements, rank after rank.
    /// **Completion**: done on return.
    /// @throws as `allreduce`.
    /// @snippet tests/docs/snippets.cpp allgather
    template <class In>
        requires(!is_fused<In>)
    [[nodiscard("hvd: the result of the call is what it returns")]] auto allgather(
        const In& in, const options& o = {}) {
        if constexpr (check_tensor<B, const In&>()) {
            using T = element_of<const In&>;
            gathered<T> result;
            gather_call<view_of<const In&>, gathered<T>*> call(
                collective::allgather, view_for(self(), collective::allgather, o, in), &result,
                root{}, true, own().size(), o);
            run_call(self(), call, o);
            return result;
        } else {
            return refused_call();
        }
    }

    /// Gathers into the caller's memory, which has room for exactly all ranks' elements.
    ///
    /// In place: `in` is the part of `out` that receives this rank's elements.
    template <class In, class View>
        requires(!is_fused<In>)
    void allgather(const In& in, const into_view<View>& out, const options& o = {}) {
        if constexpr (check_tensor<B, const In&>()) {
            static_assert(std::is_same_v<element_of<const In&>, typename View::value_type>,
                          "hvd: input and output have different element types");
            const auto view = view_for(self(), collective::allgather, o, in);
            if constexpr (is_direct<B> && !is_strided<decltype(view)>) {
                access::direct_endpoint_of(self(), collective::allgather, o.timeout)
                    ->allgather(view.data(), out.view.data(), view.size(), out.view.size());
            } else {
                gather_call<view_of<const In&>, given_memory> call(collective::allgather, view,
                                                                   memory_of(out, own().rank()),
                                                                   root{}, true, own().size(), o);
                run_call(self(), call, o);
            }
        }
    }

    /// Gathers several tensors at once. It returns a tuple with the result of `allgather` for each;
    /// a runtime list gives a vector of results. **Collective** and errors as `allgather`.
    template <class... Parts>
    [[nodiscard("hvd: the result of the call is what it returns")]] auto allgather(
        const fused<Parts...>& list, const options& o = {}) {
        results_of<gathered, fused<Parts...>> results;
        if constexpr (check_tensor<B, fused<Parts...>>()) {
            const auto held = access::hold(self(), collective::allgather);
            auto call = prepare(own(), collective::allgather, o, [&] {
                make_results(results, list);
                fused_memory& memory = own().work().fused;
                list_tensors(list, memory.tensors);
                return filled_fused<decltype(results), fused_gather_call>(results, memory, o);
            });
            run_call(self(), call, o);
        }
        return results;
    }

    /// Gathers several tensors into the caller's: `allgather(fuse(a, b), into(fuse(all_a,
    /// all_b)))`.
    template <class... Parts, class... Outs>
    void allgather(const fused<Parts...>& list, const into_view<fused<Outs...>>& out,
                   const options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>()) {
            run_made(self(), collective::allgather, o, [&] {
                fused_memory& memory = own().work().fused;
                list_tensors(list, memory.tensors);
                list_tensors(out.view, memory.outputs);
                return fused_gather_into_call(memory, own().rank(), o);
            });
        }
    }

    /// Begins an allgather with new memory. The result is complete when `wait()` returns it.
    template <class In>
        requires(!is_fused<std::remove_cvref_t<In>>)
    auto allgather_async(In&& in, const options& o = {}) {
        if constexpr (check_tensor<B, In, tensor_use::kept>()) {
            using T = element_of<In>;
            return start_call_for<gathered<T>>(
                self(), collective::allgather, o, [&](gathered<T>& value) {
                    return gather_call<view_of<In>, gathered<T>*>(
                        collective::allgather, to_view(in), &value, root{}, true, own().size(), o);
                });
        } else {
            return refused_call();
        }
    }

    /// Begins an allgather into the caller's memory.
    template <class In, class View>
        requires(!is_fused<std::remove_cvref_t<In>>)
    request allgather_async(In&& in, const into_view<View>& out, const options& o = {}) {
        if constexpr (check_tensor<B, In, tensor_use::kept>()) {
            static_assert(std::is_same_v<element_of<In>, typename View::value_type>,
                          "hvd: input and output have different element types");
            return start_call(self(), collective::allgather, o, [&] {
                return gather_call<view_of<In>, given_memory>(collective::allgather, to_view(in),
                                                              memory_of(out, own().rank()), root{},
                                                              true, own().size(), o);
            });
        }
        return {};
    }

    /// Begins an allgather of several tensors with new memory. `wait()` returns a tuple.
    template <class... Parts>
    auto allgather_async(const fused<Parts...>& list, const options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>()) {
            using Results = results_of<gathered, fused<Parts...>>;
            return start_call_for<Results>(self(), collective::allgather, o, [&](Results& results) {
                make_results(results, list);
                return kept_fused<Results, fused_gather_call>(memory_for(list), results, o);
            });
        } else {
            return refused_call();
        }
    }

    /// Begins an allgather of several tensors into the caller's.
    template <class... Parts, class... Outs>
    request allgather_async(const fused<Parts...>& list, const into_view<fused<Outs...>>& out,
                            const options& o = {}) {
        if constexpr (check_tensor<B, fused<Parts...>>())
            return start_call(self(), collective::allgather, o, [&] {
                return with_memory<fused_gather_into_call>(memory_for(list, out.view), own().rank(),
                                                           o);
            });
        return {};
    }

    // An output without hvd::into is refused.
    template <class In, bare_output Out, class... A>
        requires(!pointer_like<In>)
    refused_call allgather(const In&, Out&&, A&&...) {
        static_assert(has_into<Out>, "hvd: the memory of the result is marked: hvd::into(out)");
        return {};
    }

    // A pointer and a count are refused with the words of check_tensor.
    template <pointer_like P, class... A>
    refused_call allgather(P&&, A&&...) {
        check_tensor<B, P>();
        return {};
    }

    // Numbers in braces are refused.
    template <class T, class... A>
    refused_call allgather(std::initializer_list<T>&&, A&&...) {
        return refuse_braces<T>();
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }
};

}  // namespace hvd::inline v0::detail
