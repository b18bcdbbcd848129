// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <cstring>

#include "../core/dtype.hpp"
#include "../core/lean/finite.hpp"
#include "pack.hpp"

namespace hvd::inline v0::detail {

// Numbers that are not finite are NaNs and infinities: all bits of the exponent are set. They are
// found as integers, so that -ffast-math changes nothing.

template <class Bits>
Bits bits_at(const std::byte* data, std::size_t index) {
    Bits bits;
    std::memcpy(&bits, data + index * sizeof(Bits), sizeof bits);
    return bits;
}

// The sum of an exponent with all bits and its lowest bit reaches the sign, and no other sum does.
// Compilers make vectors of it, also at -O2 where `n` is a constant.
template <class Bits>
bool any_not_finite(const std::byte* data, std::size_t n, Bits exponent) {
    constexpr int top = 8 * int(sizeof(Bits)) - 1;
    const Bits lowest = Bits(exponent & (~exponent + 1));
    Bits sums = 0;
    for (std::size_t i = 0; i < n; ++i)
        sums = Bits(sums | Bits((bits_at<Bits>(data, i) & exponent) + lowest));
    return (sums >> top) != 0;
}

// Returns the index of the first of `count` numbers that is not finite, or `count`.
template <class Bits>
std::size_t first_not_finite(const std::byte* data, std::size_t count, Bits exponent) {
    constexpr std::size_t block = 4096 / sizeof(Bits);
    std::size_t i = 0;
    while (count - i >= block && !any_not_finite(data + i * sizeof(Bits), block, exponent))
        i += block;
    while (i < count && (bits_at<Bits>(data, i) & exponent) != exponent) ++i;
    return i;
}

// The same for elements of a type: a complex one has two numbers. Types without infinities, and
// those of users, have no such elements.
inline std::size_t first_not_finite(dtype id, const std::byte* data, std::size_t count) {
    const auto find = [&](auto exponent, std::size_t parts) {
        return first_not_finite(data, parts * count, exponent) / parts;
    };
    switch (id) {
        case dtype::float16: return find(std::uint16_t{infinity_bits<float16>}, 1);
        case dtype::bfloat16: return find(std::uint16_t{infinity_bits<bfloat16>}, 1);
        case dtype::float32: return find(std::uint32_t{infinity_bits<float>}, 1);
        case dtype::float64: return find(std::uint64_t{infinity_bits<double>}, 1);
        case dtype::complex64: return find(std::uint32_t{infinity_bits<float>}, 2);
        case dtype::complex128: return find(std::uint64_t{infinity_bits<double>}, 2);
        default: return count;
    }
}

// A number that is not finite.
enum class bad_value : std::uint8_t { nan, infinity, minus_infinity };
constexpr const char* bad_value_names[] = {"nan", "inf", "-inf"};

template <class Bits>
bad_value bad_value_of(Bits bits, Bits exponent) {
    const Bits sign = Bits(Bits(1) << (8 * sizeof(Bits) - 1));
    if ((bits & Bits(~(exponent | sign))) != 0) return bad_value::nan;
    return (bits & sign) != 0 ? bad_value::minus_infinity : bad_value::infinity;
}

// Says what the element is: of a complex one, its first part that is not finite.
[[gnu::cold]] inline bad_value bad_value_of(dtype id, const std::byte* element) {
    const auto kind = [&](auto exponent) {
        using Bits = decltype(exponent);
        Bits bits = bits_at<Bits>(element, 0);
        if ((bits & exponent) != exponent) bits = bits_at<Bits>(element, 1);
        return bad_value_of<Bits>(bits, exponent);
    };
    switch (id) {
        case dtype::float16: return kind(std::uint16_t{infinity_bits<float16>});
        case dtype::bfloat16: return kind(std::uint16_t{infinity_bits<bfloat16>});
        case dtype::float32:
        case dtype::complex64: return kind(std::uint32_t{infinity_bits<float>});
        default: return kind(std::uint64_t{infinity_bits<double>});
    }
}

// An element of a tensor: its index, row-major, and its place.
struct found_element {
    std::size_t index = 0;
    const std::byte* place = nullptr;  // null: none was found
};

inline bool find_not_finite(const tensor_ref& t, std::size_t dimension, const std::byte* at,
                            found_element& found) {
    const auto look = [&](const std::byte* from, std::size_t count) {
        const std::size_t n = first_not_finite(t.id, from, count);
        found.index += n;
        if (n == count) return false;
        found.place = from + n * t.element_bytes;
        return true;
    };
    if (t.dense) return look(at, t.count);
    const bool last = dimension + 1 >= t.dimensions;
    if (last && t.steps[dimension] == std::ptrdiff_t(t.element_bytes))
        return look(at, t.extents[dimension]);
    for (std::size_t i = 0; i < t.extents[dimension]; ++i, at += t.steps[dimension])
        if (last ? look(at, 1) : find_not_finite(t, dimension + 1, at, found)) return true;
    return false;
}

// Finds the first element that is not finite.
inline found_element find_not_finite(const tensor_ref& t) {
    found_element found;
    if (t.count > 0) find_not_finite(t, 0, t.data, found);
    return found;
}

}  // namespace hvd::inline v0::detail
