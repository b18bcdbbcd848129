// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "../standard.hpp"

// True if C++ has the type _Float16. g++ 12 describes it on AArch64, where only its C compiler has
// it.
#if defined(__FLT16_MANT_DIG__) && (defined(__clang__) || defined(__x86_64__) || __GNUC__ >= 13)
#define HVD_HAS_BUILTIN_FLOAT16 1
#else
#define HVD_HAS_BUILTIN_FLOAT16 0
#endif

namespace hvd::inline v0 {

/// IEEE 754 binary16: 1 sign, 5 exponent and 10 mantissa bits.
///
/// It is explicit from float: it rounds to nearest, ties to even, and overflow gives infinity. It
/// converts to float without loss. It has no arithmetic of its own: hvd reduces it in float and
/// rounds once.
class float16 {
public:
    float16() = default;

    explicit constexpr float16(float value) noexcept : bits_(round(value)) {}

    constexpr operator float() const noexcept {
        const std::uint32_t magnitude = std::uint32_t(bits_ & 0x7fffu) << 13;
        const std::uint32_t sign = std::uint32_t(bits_ & 0x8000u) << 16;
        // The difference normalises subnormal numbers. No float on the way is subnormal, since
        // programs that link with -ffast-math take those for zeros.
        if (magnitude < 0x00800000u) {
            const float number = std::bit_cast<float>(magnitude + 0x38800000u) - 0x1p-14f;
            return std::bit_cast<float>(std::bit_cast<std::uint32_t>(number) | sign);
        }
        // The exponent's bias goes from 15 to 127. Infinities and NaNs get all exponent bits.
        const std::uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
        return std::bit_cast<float>((magnitude + 0x38000000u) | special | sign);
    }

    /// The number whose encoding is `bits`.
    static constexpr float16 from_bits(std::uint16_t bits) noexcept {
        float16 result{};
        result.bits_ = bits;
        return result;
    }

    /// The encoding.
    constexpr std::uint16_t bits() const noexcept { return bits_; }

private:
    static constexpr std::uint16_t round(float value) noexcept {
        const std::uint32_t word = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t sign = (word >> 16) & 0x8000u;
        const std::uint32_t magnitude = word & 0x7fffffffu;
        if (magnitude > 0x7f800000u)
            return std::uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
        if (magnitude >= 0x477ff000u) return std::uint16_t(sign | 0x7c00u);
        if (magnitude < 0x38800000u) {
            // The number is subnormal: the sum with 0.5 leaves the rounded multiple of 2^-24 in the
            // low bits.
            const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
            return std::uint16_t(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
        }
        const std::uint32_t odd = (magnitude >> 13) & 1u;
        return std::uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
    }

    std::uint16_t bits_;
};

/// The upper half of a float: 1 sign, 8 exponent and 7 mantissa bits.
///
/// It is explicit from float (it rounds to nearest, ties to even) and converts to float without
/// loss. It has no arithmetic of its own: hvd reduces it in float and rounds once.
class bfloat16 {
public:
    bfloat16() = default;

    explicit constexpr bfloat16(float value) noexcept : bits_(round(value)) {}

    constexpr operator float() const noexcept {
        return std::bit_cast<float>(std::uint32_t(bits_) << 16);
    }

    /// The number whose encoding is `bits`.
    static constexpr bfloat16 from_bits(std::uint16_t bits) noexcept {
        bfloat16 result{};
        result.bits_ = bits;
        return result;
    }

    /// The encoding.
    constexpr std::uint16_t bits() const noexcept { return bits_; }

private:
    static constexpr std::uint16_t round(float value) noexcept {
        const std::uint32_t word = std::bit_cast<std::uint32_t>(value);
        if ((word & 0x7fffffffu) > 0x7f800000u) return std::uint16_t((word >> 16) | 0x40u);
        return std::uint16_t((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }

    std::uint16_t bits_;
};

}  // namespace hvd::inline v0

namespace hvd::inline v0::detail {

// The members of std::numeric_limits for a binary floating-point type of 16 bits with `Digits`
// digits.
template <class T, int Digits, int MaxExponent>
struct half_limits : std::numeric_limits<float> {
    static constexpr int digits = Digits;
    static constexpr int digits10 = (Digits - 1) * 30103 / 100000;
    static constexpr int max_digits10 = Digits * 30103 / 100000 + 2;
    static constexpr int max_exponent = MaxExponent;
    static constexpr int min_exponent = 3 - MaxExponent;
    static constexpr int max_exponent10 = MaxExponent * 30103 / 100000;
    static constexpr int min_exponent10 = -((MaxExponent - 2) * 30103 / 100000);

    static constexpr T infinity() noexcept { return T::from_bits(exponent_bits); }
    static constexpr T quiet_NaN() noexcept { return T::from_bits(exponent_bits | quiet_bit); }
    static constexpr T signaling_NaN() noexcept { return T::from_bits(exponent_bits | 1); }
    static constexpr T max() noexcept { return T::from_bits(exponent_bits - 1); }
    static constexpr T lowest() noexcept { return T::from_bits(0x8000 | (exponent_bits - 1)); }
    static constexpr T min() noexcept { return T::from_bits(2 * quiet_bit); }
    static constexpr T denorm_min() noexcept { return T::from_bits(1); }
    static constexpr T epsilon() noexcept { return T(1.0f / float(1 << (Digits - 1))); }
    static constexpr T round_error() noexcept { return T(0.5f); }

private:
    static constexpr std::uint16_t quiet_bit = 1 << (Digits - 2);
    static constexpr std::uint16_t exponent_bits = 0x8000 - 2 * quiet_bit;
};

}  // namespace hvd::inline v0::detail

template <>
struct std::numeric_limits<hvd::float16> : hvd::detail::half_limits<hvd::float16, 11, 16> {};
template <>
struct std::numeric_limits<hvd::bfloat16> : hvd::detail::half_limits<hvd::bfloat16, 8, 128> {};
