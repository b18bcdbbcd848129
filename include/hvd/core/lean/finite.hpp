// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "../../standard.hpp"

namespace hvd::inline v0 {

class float16;
class bfloat16;

namespace detail {

// Infinities and NaNs are found by their bits. Under -ffast-math (and -Ofast, -ffinite-math-only)
// the compiler takes every number for finite: std::isfinite(x) is true there, and x != x false.

template <class F>
constexpr bool is_half = false;
template <>
inline constexpr bool is_half<float16> = true;
template <>
inline constexpr bool is_half<bfloat16> = true;

// The bits of a number of 32 or 64 bits. Under these options the compiler must not know where they
// come from: what it computed can't be a NaN for it. Elsewhere it is free to use vectors.
template <class F>
    requires std::is_floating_point_v<F>
constexpr auto bits_of(F x) {
    auto bits = std::bit_cast<std::conditional_t<sizeof(F) == 4, std::uint32_t, std::uint64_t>>(x);
#if __FINITE_MATH_ONLY__ && !defined(__CUDA_ARCH__)
    if (!std::is_constant_evaluated()) asm("" : "+r"(bits));
#endif
    return bits;
}
template <class F>
    requires is_half<F>
constexpr std::uint16_t bits_of(F x) {
    return x.bits();
}

// The bits of an infinity: all of the exponent.
template <class F>
constexpr auto infinity_bits = std::is_same_v<F, float>      ? 0x7f800000u
                               : std::is_same_v<F, float16>  ? 0x7c00u
                               : std::is_same_v<F, bfloat16> ? 0x7f80u
                                                             : 0x7ff0000000000000u;

template <class F>
constexpr bool has_float_bits = std::is_same_v<F, float> || std::is_same_v<F, double> || is_half<F>;

template <class F>
    requires has_float_bits<F>
constexpr bool is_finite(const F& x) {
    return (bits_of(x) & infinity_bits<F>) != infinity_bits<F>;
}

template <class F>
constexpr bool is_nan(const F& x) {
#if __FINITE_MATH_ONLY__
    if constexpr (has_float_bits<F>) {
        constexpr auto mantissa = (infinity_bits<F> & (~infinity_bits<F> + 1)) - 1;
        const auto bits = bits_of(x);
        return (bits & infinity_bits<F>) == infinity_bits<F> && (bits & mantissa) != 0;
    }
#endif
    return x != x;
}

// A factor that is 1 changes nothing. A NaN may equal everything there.
constexpr bool is_one(double factor) {
    return std::bit_cast<std::uint64_t>(factor) == std::bit_cast<std::uint64_t>(1.0);
}

}  // namespace detail
}  // namespace hvd::inline v0
