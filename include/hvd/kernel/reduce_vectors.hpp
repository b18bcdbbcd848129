// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "plain.hpp"
#include "simd/lanes.hpp"

namespace hvd::inline v0::detail {

// The type is chosen by size, so that `long` and `long long` share a kernel.
template <std::size_t Bytes>
using sized_unsigned = std::conditional_t<
    Bytes == 1, std::uint8_t,
    std::conditional_t<Bytes == 2, std::uint16_t,
                       std::conditional_t<Bytes == 4, std::uint32_t, std::uint64_t>>>;

// True for numbers with built-in operations, except those with 128-bit sums.
template <class T, class Op>
constexpr bool is_vectorized = HVD_KERNEL_VECTORS && !is_custom<Op> && !in_wide_integers<T, Op> &&
                               (is_float_element<T> || is_integer_element<T>);

#if HVD_KERNEL_VECTORS

// Computes a = a Op b as combine() does.
template <class Op, class V>
HVD_KERNEL_BODY void combine_vectors(V& a, const V& b) {
    if constexpr (std::is_same_v<Op, op::sum> || std::is_same_v<Op, op::average>) a += b;
    else if constexpr (std::is_same_v<Op, op::product>) a *= b;
    else if constexpr (std::is_same_v<Op, op::min> || std::is_same_v<Op, op::max>) {
        vector_mask<V> wins = std::is_same_v<Op, op::min> ? b < a : a < b, none;
#if __FINITE_MATH_ONLY__
        find_nans(none, a);  // a comparison with a NaN may be true
        wins &= ~none;
#endif
        find_nans(none, b);
        a = (wins | none) ? b : a;
    } else if constexpr (std::is_same_v<Op, op::bit_and>) a &= b;
    else if constexpr (std::is_same_v<Op, op::bit_or>) a |= b;
    else if constexpr (std::is_same_v<Op, op::bit_xor>) a ^= b;
    else if constexpr (std::is_same_v<Op, op::logical_and>) a &= reinterpret_cast<V>(b != 0);
    else a |= reinterpret_cast<V>(b != 0) & 1;
}

// Does for vectors as loaded() does for elements.
template <class Op, class V>
HVD_KERNEL_BODY void make_logical(V& a) {
    if constexpr (is_logical<Op>) a = reinterpret_cast<V>(a != 0) & 1;
}

template <class Op, class L>
HVD_KERNEL_BODY void combine_lanes(L& x, const L& y) {
    combine_vectors<Op>(x.a, y.a);
    combine_vectors<Op>(x.b, y.b);
}

// The ways to run a loop over blocks. Each has no instruction more than it needs: a processor looks
// some hundred instructions ahead, and asks for the lines that they read.
enum class block_loop : std::uint8_t {
    scaled,    // with factors
    unscaled,  // both factors are 1
    fetching,  // both factors are 1, and lines are fetched before they are read
};

template <block_loop Loop, class L, class T>
HVD_KERNEL_BODY void load_block(L& x, const T* from, std::size_t ahead) {
    if constexpr (Loop == block_loop::fetching)
        for (std::size_t i = 0; i < L::block; i += tuning::cache_line / sizeof(T))
            __builtin_prefetch(from + ahead + i);
    x.load(from);
}

// Reduces whole blocks as long as more than `ahead` elements are left, and leaves the rest to the
// caller.
template <class T, class Op, int Width, block_loop Loop>
HVD_KERNEL_BODY void reduce_blocks(const reduce_args& args, std::size_t ahead, std::size_t& first,
                                   std::size_t& n, std::byte*& to) {
    using L = lanes<T, Width>;
    using A = typename L::accumulator;
    constexpr bool scales = Loop == block_loop::scaled;
    constexpr bool scales_before = scales || scales_means<T, Op>;
    const double power = power_before_mean<T, Op>(args.divisor), by = args.divisor * power;
    [[maybe_unused]] const A before = A(args.prescale * power), after = A(args.postscale);
    [[maybe_unused]] const A divisor = A(by), inverse = A(1 / by);
    [[maybe_unused]] const bool divides =
        // a quotient by a power of two is computed as a product
        (args.divisor & (args.divisor - 1)) != 0;
    const std::byte* const* const inputs = args.inputs;
    const int ranks = args.ranks;
    for (; n >= L::block + ahead; n -= L::block, first += L::block, to += L::block * sizeof(T)) {
        L x;
        load_block<Loop>(x, reinterpret_cast<const T*>(inputs[0]) + first, ahead);
        if constexpr (scales_before) x.scale(before);
        make_logical<Op>(x.a);
        make_logical<Op>(x.b);
        for (int r = 1; r < ranks; ++r) {
            L y;
            load_block<Loop>(y, reinterpret_cast<const T*>(inputs[r]) + first, ahead);
            if constexpr (scales_before) y.scale(before);
            combine_vectors<Op>(x.a, y.a);
            combine_vectors<Op>(x.b, y.b);
        }
        if constexpr (scales) x.scale(after);
        if constexpr (std::is_same_v<Op, op::average>) {
            if (divides) x.divide(divisor);
            else x.scale(inverse);
        }
        x.make_nans_one();
        x.store(reinterpret_cast<T*>(to));
    }
}

// Reduces as reduce_plain() does, with vectors for all but the last few elements.
template <class T, class Op, int Width>
HVD_KERNEL_BODY void reduce_vectors(const reduce_args& args, std::size_t first, std::size_t n,
                                    std::byte* to) {
    if (!is_one(args.prescale) || !is_one(args.postscale)) {
        reduce_blocks<T, Op, Width, block_loop::scaled>(args, 0, first, n, to);
    } else {
        if (args.ahead != 0)
            reduce_blocks<T, Op, Width, block_loop::fetching>(args, args.ahead / sizeof(T), first,
                                                              n, to);
        reduce_blocks<T, Op, Width, block_loop::unscaled>(args, 0, first, n, to);
    }
    reduce_plain<T, Op>(args, first, n, to);
}

template <class T, class Op>
void reduce_baseline(const reduce_args& args, std::size_t first, std::size_t n, std::byte* to) {
    reduce_vectors<T, Op, 16>(args, first, n, to);
}

#if HVD_KERNEL_X86

template <class T, class Op>
HVD_KERNEL_AVX2 void reduce_avx2(const reduce_args& args, std::size_t first, std::size_t n,
                                 std::byte* to) {
    reduce_vectors<T, Op, 32>(args, first, n, to);
}

template <class T, class Op>
HVD_KERNEL_AVX512 void reduce_avx512(const reduce_args& args, std::size_t first, std::size_t n,
                                     std::byte* to) {
    reduce_vectors<T, Op, 64>(args, first, n, to);
}

#endif
#endif

}  // namespace hvd::inline v0::detail
