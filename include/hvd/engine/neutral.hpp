// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "../collective/call/call.hpp"
#include "../kernel/neutral.hpp"
#include "negotiation/signature.hpp"

namespace hvd::inline v0::detail {

// A rank that has joined contributes elements that change no result.

// How this rank reduces elements of a type by an operation. Every rank of a reduction needs that,
// one that has joined as well.
struct known_reduction {
    dtype id;
    std::uint8_t op, mode;
    reduce_function function;
    rounding rounds;  // what an operation with a rounding consists of

    bool is_for(const call_header& h) const { return id == h.id && op == h.op && mode == h.mode; }
};

// The reductions of the usual elements, which a rank knows that has not made them before.
template <class... T>
std::vector<known_reduction> usual_reductions() {
    std::vector<known_reduction> known;
    const auto add = [&]<class E, class Op>(E, Op) {
        if constexpr (is_float_element<E> || !std::is_same_v<Op, op::average>)
            known.push_back({dtype_traits<E>::id, std::uint8_t(Op::id), 0, &reduce_elements<E, Op>,
                             rounding::toward_zero});
    };
    ((add(T{}, op::sum{}), add(T{}, op::average{}), add(T{}, op::min{}), add(T{}, op::max{}),
      add(T{}, op::product{})),
     ...);
    return known;
}

}  // namespace hvd::inline v0::detail
