// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <limits>

#include "../core/dtype.hpp"
#include "../core/half.hpp"
#include "../core/lean/finite.hpp"
#include "../core/op.hpp"

namespace hvd::inline v0::detail {

// Elements that change no result of a reduction.

template <class T>
void fill_neutral(std::byte* data, std::size_t count, int op, double prescale) {
    T* const values = reinterpret_cast<T*>(data);
    const auto fill = [&](T value) {
        for (std::size_t i = 0; i < count; ++i) values[i] = value;
    };
    using limits = std::numeric_limits<T>;
    const bool turns = prescale < 0;  // the scale turns the order of numbers round
    constexpr T highest = limits::has_infinity ? limits::infinity() : limits::max();
    constexpr T lowest = limits::has_infinity ? T(-limits::infinity()) : limits::lowest();
    if (op == op::min::id) fill(turns ? lowest : highest);
    else if (op == op::max::id) fill(turns ? highest : lowest);
    else if (op == op::product::id) fill(is_one(prescale) ? T(1) : T(1 / prescale));
    else if (op == op::bit_and::id) std::memset(data, 0xff, count * sizeof(T));
    else if (op == op::logical_and::id) fill(T(1));
    else std::memset(data, 0, count * sizeof(T));
}

// 16-bit floats by their bits: they have no limits.
template <class T>
void fill_neutral_half(std::byte* data, std::size_t count, int op, double prescale) {
    T* const values = reinterpret_cast<T*>(data);
    const float infinity = std::numeric_limits<float>::infinity();
    const float sign = prescale < 0 ? -1.0f : 1.0f;
    float value = 0;
    if (op == op::min::id) value = sign * infinity;
    else if (op == op::max::id) value = -sign * infinity;
    else if (op == op::product::id) value = float(1 / prescale);
    for (std::size_t i = 0; i < count; ++i) values[i] = T(value);
}

template <class C>
void fill_neutral_complex(std::byte* data, std::size_t count, int op, double prescale) {
    std::memset(data, 0, 2 * count * sizeof(C));
    C* const values = reinterpret_cast<C*>(data);
    if (op == op::product::id)
        for (std::size_t i = 0; i < count; ++i) values[2 * i] = C(1 / prescale);
}

// Fills `count` elements with the neutral one of an operation. False for types of users.
inline bool fill_neutral(dtype id, std::byte* data, std::size_t count, int op, double prescale) {
    if (count == 0) return true;
    switch (id) {
        case dtype::int8: fill_neutral<std::int8_t>(data, count, op, prescale); return true;
        case dtype::int16: fill_neutral<std::int16_t>(data, count, op, prescale); return true;
        case dtype::int32: fill_neutral<std::int32_t>(data, count, op, prescale); return true;
        case dtype::int64: fill_neutral<std::int64_t>(data, count, op, prescale); return true;
        case dtype::byte:
        case dtype::uint8: fill_neutral<std::uint8_t>(data, count, op, prescale); return true;
        case dtype::uint16: fill_neutral<std::uint16_t>(data, count, op, prescale); return true;
        case dtype::uint32: fill_neutral<std::uint32_t>(data, count, op, prescale); return true;
        case dtype::uint64: fill_neutral<std::uint64_t>(data, count, op, prescale); return true;
        case dtype::boolean: {
            const bool one = op == op::min::id || op == op::product::id || op == op::bit_and::id ||
                             op == op::logical_and::id;
            std::memset(data, one ? 1 : 0, count);
            return true;
        }
        case dtype::float16: fill_neutral_half<float16>(data, count, op, prescale); return true;
        case dtype::bfloat16: fill_neutral_half<bfloat16>(data, count, op, prescale); return true;
        case dtype::float32: fill_neutral<float>(data, count, op, prescale); return true;
        case dtype::float64: fill_neutral<double>(data, count, op, prescale); return true;
        case dtype::complex64: fill_neutral_complex<float>(data, count, op, prescale); return true;
        case dtype::complex128:
            fill_neutral_complex<double>(data, count, op, prescale);
            return true;
        case dtype::user: break;
    }
    return false;
}

inline std::size_t element_bytes_of(dtype id) {
    switch (id) {
        case dtype::int16:
        case dtype::uint16:
        case dtype::float16:
        case dtype::bfloat16: return 2;
        case dtype::int32:
        case dtype::uint32:
        case dtype::float32: return 4;
        case dtype::int64:
        case dtype::uint64:
        case dtype::float64:
        case dtype::complex64: return 8;
        case dtype::complex128: return 16;
        default: return 1;
    }
}

}  // namespace hvd::inline v0::detail
