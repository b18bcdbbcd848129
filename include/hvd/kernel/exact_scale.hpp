// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "../core/lean/finite.hpp"
#include "../core/op.hpp"
#include "wide_integer.hpp"

namespace hvd::inline v0::detail {

// A magnitude that was computed exactly: its whole part, and the relation of the rest to 0 and 1/2.
struct exact_magnitude {
    std::uint64_t whole = 0;  // the largest number if the whole part is larger
    bool has_rest = false;
    bool is_half_or_more = false;

    static constexpr exact_magnitude too_large() { return {UINT64_MAX, false, false}; }
};

// Computes value * factor / divisor for a factor of at least 0 and the two halves of a value, the
// lower first. Its digits have base 2^32, the lowest first. `long double` would round in between,
// and in another way on each kind of processor.
[[gnu::cold]] inline exact_magnitude scaled_magnitude(const std::uint64_t (&value)[2],
                                                      double factor, std::uint32_t divisor) {
    if (is_nan(factor) || !(factor > 0) || (value[0] | value[1]) == 0) return {};
    if (!is_finite(factor)) return exact_magnitude::too_large();
    int exponent = 0;
    const auto mantissa = std::uint64_t(__builtin_frexp(factor, &exponent) * 0x1p53);
    exponent -= 53;
    // The product is 2^52 or more before it is shifted, and the divisor less than 2^32.
    if (exponent > 44) return exact_magnitude::too_large();
    constexpr int digits = 8;
    std::uint32_t digit[digits] = {};
    for (int i = 0; i < 4; ++i) {
        std::uint64_t carry = 0;
        for (int j = 0; j < 2; ++j) {
            carry += digit[i + j] + std::uint64_t(std::uint32_t(value[i / 2] >> (32 * (i % 2)))) *
                                        std::uint32_t(mantissa >> (32 * j));
            digit[i + j] = std::uint32_t(carry);
            carry >>= 32;
        }
        digit[i + 2] = std::uint32_t(carry);
    }
    for (; exponent > 0; --exponent)
        for (int i = digits; i-- > 0;)
            digit[i] = (digit[i] << 1) | (i > 0 ? digit[i - 1] >> 31 : 0);
    std::uint64_t rest = 0;
    for (int i = digits; i-- > 0;) {
        rest = (rest << 32) | digit[i];
        digit[i] = std::uint32_t(rest / divisor);
        rest %= divisor;
    }
    // The quotient is now shifted to the right by -exponent bits.
    const int shift = -exponent;
    const auto bit = [&](int at) {
        return at < 32 * digits ? (digit[at / 32] >> (at % 32)) & 1u : 0u;
    };
    exact_magnitude result{0, rest != 0, shift == 0 ? 2 * rest >= divisor : bit(shift - 1) != 0};
    for (int i = 0; i < shift && i < 32 * digits; ++i) result.has_rest |= bit(i) != 0;
    for (int i = 0; i < 64; ++i) result.whole |= std::uint64_t(bit(shift + i)) << i;
    for (int i = shift + 64; i < 32 * digits; ++i)
        if (bit(i) != 0) return exact_magnitude::too_large();
    return result;
}

// Returns sum * factor / divisor, rounded once. It stops at the ends of T.
template <class T, class Wide>
T scaled_integer(Wide sum, double factor, int divisor, rounding mode) {
    const bool is_negative = (sum < 0) != (factor < 0);
    const Wide size = sum < 0 ? -sum : sum;
    const exact_magnitude exact =
        scaled_magnitude({std::uint64_t(size), upper_half(size)}, factor < 0 ? -factor : factor,
                         std::uint32_t(divisor));
    const bool away = mode == rounding::nearest ? exact.is_half_or_more
                      : mode == rounding::down  ? is_negative && exact.has_rest
                                                : false;
    const std::uint64_t whole = exact.whole + (away && exact.whole != UINT64_MAX ? 1 : 0);
    constexpr std::uint64_t most = std::uint64_t(std::numeric_limits<T>::max()),
                            least = std::is_signed_v<T> ? most + 1 : 0;
    if (is_negative) return whole < least ? T(0 - whole) : std::numeric_limits<T>::min();
    return whole < most ? T(whole) : std::numeric_limits<T>::max();
}

}  // namespace hvd::inline v0::detail
