// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "plain.hpp"
#include "reduce_vectors.hpp"
#include "stream.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What elements of type T are reduced as: types that are laid out alike share one kernel.
template <class T, class Op, std::size_t Each = 1>
struct reduced_as {
    using type = T;
    using op = Op;
    static constexpr std::size_t each = Each;  // how many of it make one T
};

template <class T, class Op>
constexpr auto canonical_reduction() {
    using plain = plain_op_t<Op>;
    constexpr bool adds = std::is_same_v<plain, op::sum> || std::is_same_v<plain, op::average>;
    constexpr bool ordered = std::is_same_v<plain, op::min> || std::is_same_v<plain, op::max>;
    if constexpr (is_custom<plain> || in_wide_integers<T, Op>) {
        return reduced_as<T, Op>{};
    } else if constexpr (dtype_traits<T>::id == dtype::boolean) {
        using either = std::conditional_t<std::is_same_v<plain, op::max> || std::is_same_v<plain, op::logical_or>,
                                          op::bit_or, plain>;
        using both = std::conditional_t<std::is_same_v<plain, op::min> || std::is_same_v<plain, op::logical_and>,
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
        return reduced_as<T, Op>{};
    }
}

// Reduces n elements, from number `first` on, to `out`.
using span_reducer = void (*)(const reduce_args&, std::size_t first, std::size_t n, std::byte* out);

// Whether stores past the caches pay: to several places that were not read just before, each too large
// for the caches. Measured on 2 cores of an AMD Zen 3 (32 MiB of third cache), float sum of 2 inputs to 2
// places, medians of 15 to 25 interleaved runs, GB/s without and with: 1 MiB 31.3 and 31.7, 4 MiB 18.0
// and 26.3, 64 MiB 16.3 and 21.0. To one place (64 MiB: 24.4 and 21.8) and in place (31.2 and 21.9) they
// cost.
constexpr bool streaming_pays(int places, std::size_t bytes, bool in_place) {
    return places > 1 && !in_place && bytes >= (std::size_t(4) << 20);
}

// To several places: block by block, while the result is in the first cache.
inline void reduce_to_places(const reduce_args& args, span_reducer reduce, std::size_t element_bytes) {
    constexpr std::size_t block_bytes = 8192;
    alignas(64) std::byte buffer[block_bytes];
    const std::size_t block = block_bytes / element_bytes;
    for (std::size_t first = 0; first < args.count; first += block) {
        const std::size_t n = args.count - first < block ? args.count - first : block;
        const std::size_t at = first * element_bytes, bytes = n * element_bytes;
        reduce(args, first, n, buffer);
        for (int p = 0; p < args.places; ++p) {
            if (args.streaming) stream_bytes(args.outputs[p] + at, buffer, bytes);
            else __builtin_memcpy(args.outputs[p] + at, buffer, bytes);
        }
    }
    if (args.streaming) finish_streaming();
}

template <class T, class Op>
span_reducer reducer_at([[maybe_unused]] simd_level l) {
    if constexpr (!is_vectorized<T, Op>) {
        return &reduce_plain_blocks<T, Op>;
    } else {
        if (l == simd_level::avx512) return &reduce_avx512<T, Op>;
        if (l == simd_level::avx2) return &reduce_avx2<T, Op>;
        if (l == simd_level::baseline) return &reduce_baseline<T, Op>;
        return &reduce_plain<T, Op>;
    }
}

template <class T, class Op>
reduce_args as_scalars(const reduce_args& args) {
    reduce_args all = args;
    all.count *= decltype(canonical_reduction<T, Op>())::each;
    return all;
}

// Reduces the inputs in rank order, in one pass with both scales, on a level that runs here.
template <class T, class Op>
void reduce_elements_at(simd_level l, const reduce_args& args) {
    using as = decltype(canonical_reduction<T, Op>());
    const reduce_args all = as_scalars<T, Op>(args);
    reducer_at<typename as::type, typename as::op>(l)(all, 0, all.count, all.out);
}

// On the best level of this machine. The bits do not depend on it.
template <class T, class Op>
void reduce_elements(const reduce_args& args) {
    reduce_elements_at<T, Op>(best_level(), args);
}

// The same to all of `outputs`. Apart, so that who has one place does not compile it.
template <class T, class Op>
void reduce_elements_to_places_at(simd_level l, const reduce_args& args) {
    using as = decltype(canonical_reduction<T, Op>());
    reduce_to_places(as_scalars<T, Op>(args), reducer_at<typename as::type, typename as::op>(l), sizeof(typename as::type));
}

template <class T, class Op>
void reduce_elements_to_places(const reduce_args& args) {
    reduce_elements_to_places_at<T, Op>(best_level(), args);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
