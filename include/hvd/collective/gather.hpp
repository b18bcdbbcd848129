// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call/calls_base.hpp"
#include "call/gather_call.hpp"

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
    [[nodiscard("hvd: the result of the call is what it returns")]] auto gather(
        const In& in, root r = root{0}, const options& o = {}) {
        if constexpr (check_unfused<In>() && check_tensor<B, const In&>()) {
            using T = element_of<const In&>;
            gathered<T> result;
            gather_call<view_of<const In&>, gathered<T>*> call(collective::gather, to_view(in),
                                                               &result, r, own().rank() == r.rank,
                                                               own().size(), o);
            run_call(self(), call, o);
            return result;
        } else {
            return refused_call();
        }
    }

    /// Gathers into the root's memory, which has room for exactly all elements. The others' memory
    /// is ignored. In place: the root's `in` is the part of `out` that receives its elements.
    template <class In, class View>
    void gather(const In& in, const into_view<View>& out, root r = root{0}, const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, const In&>()) {
            static_assert(std::is_same_v<element_of<const In&>, typename View::value_type>,
                          "hvd: input and output have different element types");
            gather_call<view_of<const In&>, given_memory> call(
                collective::gather, to_view(in), memory_of(out, own().rank()), r,
                own().rank() == r.rank, own().size(), o);
            run_call(self(), call, o);
        }
    }

    /// Begins a gather with new memory on the root.
    template <class In>
    auto gather_async(In&& in, root r = root{0}, const options& o = {}) {
        if constexpr (check_unfused<In>() && check_tensor<B, In, tensor_use::kept>()) {
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
    request gather_async(In&& in, const into_view<View>& out, root r = root{0},
                         const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, In, tensor_use::kept>())
            return start_call(self(), collective::gather, o, [&] {
                return gather_call<view_of<In>, given_memory>(
                    collective::gather, to_view(in), memory_of(out, own().rank()), r,
                    own().rank() == r.rank, own().size(), o);
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

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }
};

}  // namespace hvd::inline v0::detail
