// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/tuning.hpp"
#include "plain.hpp"
#include "reduce_vectors.hpp"

namespace hvd::inline v0::detail {

// The type that elements of type T are reduced as. Types with the same layout share one kernel.
template <class T, class Op, std::size_t Each = 1>
struct reduced_as {
    using type = T;
    using op = Op;
    static constexpr std::size_t each = Each;  // the number of them in one T
};

template <class T, class Op>
constexpr auto canonical_reduction() {
    using plain = plain_op_t<Op>;
    constexpr bool adds = std::is_same_v<plain, op::sum> || std::is_same_v<plain, op::average>;
    constexpr bool ordered = std::is_same_v<plain, op::min> || std::is_same_v<plain, op::max>;
    if constexpr (is_custom<plain> || in_wide_integers<T, Op>) {
        return reduced_as<T, Op>{};
    } else if constexpr (dtype_traits<T>::id == dtype::boolean) {
        using either = std::conditional_t<std::is_same_v<plain, op::max> ||
                                              std::is_same_v<plain, op::logical_or>,
                                          op::bit_or, plain>;
        using both = std::conditional_t<std::is_same_v<plain, op::min> ||
                                            std::is_same_v<plain, op::logical_and>,
                                        op::bit_and, either>;
        return reduced_as<std::uint8_t, both>{};
    } else if constexpr (dtype_traits<T>::id == dtype::byte) {
        return reduced_as<std::uint8_t, plain>{};
    } else if constexpr (dtype_traits<T>::id == dtype::float16) {
        return reduced_as<float16, plain>{};
    } else if constexpr (dtype_traits<T>::id == dtype::bfloat16) {
        return reduced_as<bfloat16, plain>{};
    } else if constexpr (is_complex_element<T> && adds) {
        return reduced_as<typename T::value_type, plain, 2>{};
    } else if constexpr (is_integer_element<T> && !ordered) {
        return reduced_as<sized_unsigned<sizeof(T)>, plain>{};
    } else {
        return reduced_as<T, std::conditional_t<is_integer_element<T>, Op, plain>>{};
    }
}

// Reduces n elements, from number `first` on, to `out`.
using span_reducer = void (*)(const reduce_args&, std::size_t first, std::size_t n, std::byte* out);

template <class T, class Op>
span_reducer reducer_at([[maybe_unused]] simd_level l) {
    if constexpr (is_vectorized<T, Op>) return HVD_KERNEL_AT(l, reduce, T, Op);
    else return &reduce_plain_blocks<T, Op>;
}

// Reduces the inputs in rank order, in one pass with both scales, at a level that this machine
// runs.
template <class T, class Op>
void reduce_elements_at(simd_level l, const reduce_args& args) {
    using as = decltype(canonical_reduction<T, Op>());
    reducer_at<typename as::type, typename as::op>(l)(args, 0, args.count * as::each, args.out);
}

// Reduces at the best level of this machine. The bits do not depend on the level.
template <class T, class Op>
void reduce_elements(const reduce_args& args) {
    using as = decltype(canonical_reduction<T, Op>());
    using E = typename as::type;
    if constexpr (is_vectorized<E, typename as::op>) {
        const std::size_t n = args.count * as::each;
        if (n * sizeof(typename dtype_traits<E>::accumulator) < tuning::least_vectorized)
            return reduce_plain<E, typename as::op>(args, 0, n, args.out);
    }
    reduce_elements_at<T, Op>(best_level(), args);
}

}  // namespace hvd::inline v0::detail

#ifdef HVD_COMPILED
#include "reduce_library.hpp"
#endif
