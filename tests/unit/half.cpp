// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include <hvd/core/half.hpp>

namespace half_tests {

// float16 and bfloat16 against their formats' definitions, computed in double.

namespace {

using hvd::bfloat16;
using hvd::float16;

struct format {
    int exponent_bits, mantissa_bits;
    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

template <class H>
constexpr format format_of{5, 10};
template <>
constexpr format format_of<bfloat16>{8, 7};

constexpr double infinity = std::numeric_limits<double>::infinity();

// Returns the number of an encoding.
template <class H>
double decoded(std::uint16_t bits) {
    const format f = format_of<H>;
    const int exponent = (bits >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1),
              mantissa = bits & ((1 << f.mantissa_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1,
                 fraction = std::ldexp(double(mantissa), -f.mantissa_bits);
    if (exponent == (1 << f.exponent_bits) - 1)
        return mantissa == 0 ? sign * infinity : std::nan("");
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - f.bias());
    return sign * std::ldexp(1 + fraction, exponent - f.bias());
}

template <class H>
bool is_nan(std::uint16_t bits) {
    return std::isnan(decoded<H>(bits));
}

constexpr std::uint32_t encodings = 1u << 16;

// Calls f(encoding) for every encoding, and returns how often it is false.
template <class F>
int failures(F f) {
    int count = 0;
    for (std::uint32_t bits = 0; bits < encodings; ++bits) count += f(std::uint16_t(bits)) ? 0 : 1;
    return count;
}

}  // namespace

TEST_CASE_TEMPLATE("every encoding converts to the float that it stands for", H, float16,
                   bfloat16) {
    CHECK(failures([](std::uint16_t bits) {
              const double expected = decoded<H>(bits);
              const float got = H::from_bits(bits);
              return std::isnan(expected)
                         ? std::isnan(got)
                         : double(got) == expected && std::signbit(got) == std::signbit(expected);
          }) == 0);
}

TEST_CASE_TEMPLATE("every encoding comes back from float, NaNs as NaNs of their sign", H, float16,
                   bfloat16) {
    CHECK(failures([](std::uint16_t bits) {
              const std::uint16_t back = H(float(H::from_bits(bits))).bits();
              return is_nan<H>(bits) ? is_nan<H>(back) && (back & 0x8000) == (bits & 0x8000)
                                     : back == bits;
          }) == 0);
}

// Neighbours have even and odd mantissas, and some are subnormal. The middle between them goes to
// the even one, and numbers next to the middle go to the nearer one.
TEST_CASE_TEMPLATE("floats between two neighbours round to the nearer, ties to the even one", H,
                   float16, bfloat16) {
    CHECK(failures([](std::uint16_t bits) {
              const std::uint16_t next = std::uint16_t(bits + 1);
              if (is_nan<H>(bits) || is_nan<H>(next) || std::isinf(decoded<H>(bits)) ||
                  std::isinf(decoded<H>(next)) || (next & 0x7fff) == 0)
                  return true;
              const double low = decoded<H>(bits), high = decoded<H>(next),
                           middle = (low + high) / 2;
              const float tie = float(middle);
              if (double(tie) != middle) return true;  // no float is there
              const std::uint16_t even = (bits & 1) == 0 ? bits : next;
              return H(tie).bits() == even && H(std::nextafter(tie, float(low))).bits() == bits &&
                     H(std::nextafter(tie, float(high))).bits() == next;
          }) == 0);
}

TEST_CASE_TEMPLATE("floats of all magnitudes round to the nearest there is", H, float16, bfloat16) {
    const double largest = decoded<H>(
        std::uint16_t(((1 << format_of<H>.exponent_bits) - 1) << format_of<H>.mantissa_bits) - 1);
    const double step = largest - decoded<H>(std::uint16_t(((1 << format_of<H>.exponent_bits) - 1)
                                                           << format_of<H>.mantissa_bits) -
                                             2);
    int wrong = 0;
    for (std::uint64_t word = 0; word < 0x7f800000u; word += 9973) {
        const float value = std::bit_cast<float>(std::uint32_t(word));
        const H rounded(value);
        const double error = std::abs(double(float(rounded)) - double(value));
        const std::uint16_t bits = rounded.bits();
        if (double(value) >= largest + step / 2) {
            wrong += std::isinf(float(rounded)) ? 0 : 1;
            continue;
        }
        const double above = std::isinf(decoded<H>(std::uint16_t(bits + 1)))
                                 ? largest + step
                                 : decoded<H>(std::uint16_t(bits + 1));
        wrong += error <= std::abs(above - double(value)) ? 0 : 1;
        if (bits > 0)
            wrong += error <= std::abs(decoded<H>(std::uint16_t(bits - 1)) - double(value)) ? 0 : 1;
        wrong += H(-value).bits() == (bits | 0x8000) ? 0 : 1;
    }
    CHECK(wrong == 0);
}

TEST_CASE("overflow gives infinity, from where rounding would reach the next exponent") {
    CHECK(float16(65504.0f).bits() == 0x7bff);
    CHECK(float16(65519.996f).bits() == 0x7bff);
    CHECK(float16(65520.0f).bits() == 0x7c00);
    CHECK(float16(-65520.0f).bits() == 0xfc00);
    CHECK(float16(std::numeric_limits<float>::infinity()).bits() == 0x7c00);
    CHECK(bfloat16(std::numeric_limits<float>::max()).bits() == 0x7f80);
    CHECK(bfloat16(-std::numeric_limits<float>::infinity()).bits() == 0xff80);
}

TEST_CASE("the smallest numbers") {
    CHECK(float16(0x1p-24f).bits() == 1);
    CHECK(float16(0x1p-25f).bits() == 0);
    CHECK(float16(0x1.000002p-25f).bits() == 1);
    CHECK(float16(-0.0f).bits() == 0x8000);
    CHECK(float16(std::numeric_limits<float>::denorm_min()).bits() == 0);
    CHECK(bfloat16(std::numeric_limits<float>::denorm_min()).bits() == 0);
    CHECK(bfloat16(-0.0f).bits() == 0x8000);
}

TEST_CASE("NaNs stay NaNs, whichever bits of theirs the narrow type has") {
    for (const std::uint32_t payload :
         {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0x7f802000u}) {
        const float nan = std::bit_cast<float>(payload);
        CHECK(std::isnan(float(float16(nan))));
        CHECK(std::isnan(float(bfloat16(nan))));
    }
}

#if HVD_HAS_BUILTIN_FLOAT16
TEST_CASE("float16 rounds as the compiler's _Float16") {
    int wrong = 0;
    for (std::uint64_t word = 0; word < (std::uint64_t(1) << 32); word += 65537) {
        const float value = std::bit_cast<float>(std::uint32_t(word));
        if (!std::isnan(value))
            wrong += std::bit_cast<std::uint16_t>(_Float16(value)) == float16(value).bits() ? 0 : 1;
    }
    CHECK(wrong == 0);
}
#endif

TEST_CASE("conversions work at compile time") {
    static_assert(float16(1.5f).bits() == 0x3e00);
    static_assert(float(float16::from_bits(0x3e00)) == 1.5f);
    static_assert(bfloat16(1.5f).bits() == 0x3fc0);
    static_assert(float(bfloat16::from_bits(0x3fc0)) == 1.5f);
    CHECK(sizeof(float16) == 2);
    CHECK(sizeof(bfloat16) == 2);
}

TEST_CASE("conversion from float is explicit, to float implicit") {
    static_assert(!std::is_convertible_v<float, float16> &&
                  !std::is_convertible_v<float, bfloat16>);
    static_assert(std::is_convertible_v<float16, float> && std::is_convertible_v<bfloat16, float>);
    static_assert(std::is_trivially_copyable_v<float16> && std::is_trivially_copyable_v<bfloat16>);
    CHECK(float16(2.0f) + float16(0.5f) == 2.5f);
}

TEST_CASE_TEMPLATE("std::numeric_limits are those of the format", H, float16, bfloat16) {
    using limits = std::numeric_limits<H>;
    static_assert(limits::is_specialized && limits::has_infinity && !limits::is_integer);
    CHECK(std::numeric_limits<const H>::digits == format_of<H>.mantissa_bits + 1);
    CHECK(double(limits::infinity()) == infinity);
    CHECK(std::isnan(float(limits::quiet_NaN())));
    CHECK(std::isnan(float(limits::signaling_NaN())));
    double greatest = 0, least = 1, least_normal = 1;
    for (std::uint32_t bits = 1; bits < 0x8000; ++bits) {
        const double value = decoded<H>(std::uint16_t(bits));
        if (!std::isfinite(value)) continue;
        greatest = std::max(greatest, value);
        least = std::min(least, value);
        if (bits >> format_of<H>.mantissa_bits != 0) least_normal = std::min(least_normal, value);
    }
    CHECK(double(limits::max()) == greatest);
    CHECK(double(limits::lowest()) == -greatest);
    CHECK(double(limits::min()) == least_normal);
    CHECK(double(limits::denorm_min()) == least);
    CHECK(double(limits::epsilon()) == std::ldexp(1.0, -format_of<H>.mantissa_bits));
    CHECK(std::ldexp(1.0, limits::min_exponent - 1) == least_normal);
    CHECK(limits::max_exponent == std::ilogb(greatest) + 1);
    CHECK(limits::max_exponent10 == int(std::log10(greatest)));
    CHECK(limits::min_exponent10 == -int(-std::log10(least_normal)));
    CHECK(limits::digits10 == int((limits::digits - 1) * std::log10(2.0)));
    CHECK(limits::max_digits10 == int(std::ceil(1 + limits::digits * std::log10(2.0))));
}

}  // namespace half_tests
