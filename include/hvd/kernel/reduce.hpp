// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <limits>
#include <type_traits>

#include "../core/concepts.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// N tensors in, one out; `out` may be one of the inputs.
struct reduce_args {
    const void* op;
    const std::byte* const* inputs;
    int ranks;    // how many inputs
    int divisor;  // of an average: the communicator's size
    std::byte* out;
    std::size_t count;
    double prescale;
    double postscale;
};

using reduce_function = void (*)(const reduce_args&);

template <class T, class Op>
constexpr bool in_wide_integers = is_integer_element<T> && is_rounded<Op>;

// What the running result is held in: float for 16-bit types, which are rounded once at the end;
// 128 bits where integers are scaled, so that no sum overflows before it is divided.
template <class T, class Op>
struct accumulator { using type = typename dtype_traits<T>::accumulator; };
template <class T, class Op>
    requires in_wide_integers<T, Op>
struct accumulator<T, Op> { __extension__ typedef __int128 type; };
template <class T, class F, bool C>
struct accumulator<T, op::custom<F, C>> { using type = T; };

// Wraps around as two's complement does, without the undefined behaviour of signed overflow.
template <class A, class F>
constexpr A wrapping(A a, A b, F f) {
    if constexpr (std::is_integral_v<A> && !std::is_same_v<A, bool>) {
        using U = std::make_unsigned_t<A>;
        using Wide = std::conditional_t<(sizeof(U) < sizeof(unsigned)), unsigned, U>;
        return static_cast<A>(static_cast<U>(f(Wide(static_cast<U>(a)), Wide(static_cast<U>(b)))));
    } else {
        return static_cast<A>(f(a, b));
    }
}

template <class Op, class A>
constexpr A combine(const Op& operation, const A& a, const A& b) {
    using plain = plain_op_t<Op>;
    if constexpr (is_custom<plain>) return static_cast<A>(operation.combine(a, b));
    else if constexpr (std::is_same_v<plain, op::sum> || std::is_same_v<plain, op::average>)
        return wrapping(a, b, [](const auto& x, const auto& y) { return x + y; });
    else if constexpr (std::is_same_v<plain, op::product>)
        return wrapping(a, b, [](const auto& x, const auto& y) { return x * y; });
    else if constexpr (std::is_same_v<plain, op::min>) return b < a || b != b ? b : a;  // NaN stays
    else if constexpr (std::is_same_v<plain, op::max>) return a < b || b != b ? b : a;
    else if constexpr (std::is_same_v<plain, op::bit_and>) return static_cast<A>(a & b);
    else if constexpr (std::is_same_v<plain, op::bit_or>) return static_cast<A>(a | b);
    else if constexpr (std::is_same_v<plain, op::bit_xor>) return static_cast<A>(a ^ b);
    else if constexpr (std::is_same_v<plain, op::logical_and>) return static_cast<A>(a && b);
    else return static_cast<A>(a || b);
}

template <class A>
constexpr A scaled(const A& value, double factor) {
    if constexpr (std::is_floating_point_v<A>) return value * static_cast<A>(factor);
    else if constexpr (is_complex_element<A>)
        return value * static_cast<typename A::value_type>(factor);
    else return value;  // refused before: what cannot be scaled has a factor of 1
}

template <class A>
constexpr A divided(const A& value, int by) {
    if constexpr (is_complex_element<A>) return value / static_cast<typename A::value_type>(by);
    else return static_cast<A>(value / static_cast<A>(by));
}

template <class T>
T rounded_integer(long double value, rounding mode) {
    const long double whole = mode == rounding::nearest ? __builtin_roundl(value)
                              : mode == rounding::down  ? __builtin_floorl(value)
                                                        : __builtin_truncl(value);
    if (whole <= static_cast<long double>(std::numeric_limits<T>::min()))
        return std::numeric_limits<T>::min();
    if (whole >= static_cast<long double>(std::numeric_limits<T>::max()))
        return std::numeric_limits<T>::max();
    return static_cast<T>(whole);
}

// Exact without scales: the quotient of whole numbers, rounded by its remainder.
template <class T, class Wide>
T rounded_quotient(Wide sum, int divisor, rounding mode) {
    Wide quotient = sum / divisor;
    const Wide rest = sum % divisor;
    if (mode == rounding::down && rest < 0) --quotient;
    if (mode == rounding::nearest && 2 * (rest < 0 ? -rest : rest) >= divisor)
        quotient += sum < 0 ? -1 : 1;
    return static_cast<T>(quotient);
}

template <class T, class Op, class A>
T finished(const A& value, const reduce_args& args, const Op& operation) {
    constexpr bool is_average = std::is_same_v<plain_op_t<Op>, op::average>;
    if constexpr (in_wide_integers<T, Op>) {
        const int divisor = is_average ? args.divisor : 1;
        const double factor = args.prescale * args.postscale;
        if (factor != 1)
            return rounded_integer<T>(static_cast<long double>(value) * factor / divisor, operation.mode);
        if constexpr (is_average) return rounded_quotient<T>(value, divisor, operation.mode);
        else return static_cast<T>(value);
    } else {
        A result = value;
        if (args.postscale != 1) result = scaled(result, args.postscale);
        if constexpr (is_average) result = divided(result, args.divisor);
        return static_cast<T>(result);
    }
}

template <class T, class A, bool Scale>
A loaded(const T& value, double prescale) {
    if constexpr (Scale) return scaled(static_cast<A>(value), prescale);
    else return static_cast<A>(value);
}

template <class T, class Op, bool Prescale>
void reduce_blocks(const reduce_args& args) {
    using A = typename accumulator<T, Op>::type;
    constexpr std::size_t block = sizeof(A) > 4096 ? 1 : 4096 / sizeof(A);
    const Op& operation = *static_cast<const Op*>(args.op);
    T* const out = reinterpret_cast<T*>(args.out);
    A running[block];
    for (std::size_t first = 0; first < args.count; first += block) {
        const std::size_t n = args.count - first < block ? args.count - first : block;
        const T* const head = reinterpret_cast<const T*>(args.inputs[0]) + first;
        for (std::size_t i = 0; i < n; ++i) running[i] = loaded<T, A, Prescale>(head[i], args.prescale);
        for (int r = 1; r < args.ranks; ++r) {
            const T* const next = reinterpret_cast<const T*>(args.inputs[r]) + first;
            for (std::size_t i = 0; i < n; ++i)
                running[i] = combine(operation, running[i], loaded<T, A, Prescale>(next[i], args.prescale));
        }
        for (std::size_t i = 0; i < n; ++i) out[first + i] = finished<T>(running[i], args, operation);
    }
}

// Reduces the inputs in rank order, in one pass with both scales: what decides the bits.
template <class T, class Op>
void reduce_elements(const reduce_args& args) {
    if constexpr (is_float_element<T> || is_complex_element<T>)
        if (args.prescale != 1) return reduce_blocks<T, Op, true>(args);
    reduce_blocks<T, Op, false>(args);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
