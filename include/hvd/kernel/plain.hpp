// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../core/concepts.hpp"
#include "../core/lean/finite.hpp"
#include "../core/tuning.hpp"
#include "exact_scale.hpp"
#include "wide_integer.hpp"

namespace hvd::inline v0::detail {

// Reduces N tensors to one, which may be exactly an input. All are aligned as their elements are,
// unless these need more than memory has in general: hvd's own buffers have no more.
struct reduce_args {
    const void* op;
    const std::byte* const* inputs;
    int ranks;    // the number of inputs
    int divisor;  // the communicator's size, for an average
    std::byte* out;
    std::size_t count;
    double prescale;
    double postscale;
    std::size_t ahead = 0;  // so many bytes before they are read, lines of the inputs are fetched
};

using reduce_function = void (*)(const reduce_args&);

// Elements of any alignment, by their number. One that may lie anywhere is copied.
template <class T>
constexpr bool may_lie_anywhere = alignof(T) > alignof(std::max_align_t);

template <class T>
decltype(auto) element_at(const std::byte* elements, std::size_t index) {
    if constexpr (may_lie_anywhere<T>) {
        T copy;
        std::memcpy(&copy, elements + index * sizeof(T), sizeof(T));
        return copy;
    } else {
        return (reinterpret_cast<const T*>(elements)[index]);
    }
}
template <class T>
void put_element(std::byte* elements, std::size_t index, const T& value) {
    if constexpr (may_lie_anywhere<T>) std::memcpy(elements + index * sizeof(T), &value, sizeof(T));
    else reinterpret_cast<T*>(elements)[index] = value;
}

template <class T, class Op>
constexpr bool in_wide_integers = is_integer_element<T> && is_rounded<Op>;

// The type of the running result. 16-bit floats use float and are rounded once at the end. Scaled
// integers use twice the bits or more, so that no sum overflows before it is divided.
template <class T, class Op>
struct accumulator {
    using type = typename dtype_traits<T>::accumulator;
};
template <class T, class Op>
    requires in_wide_integers<T, Op>
struct accumulator<T, Op> {
    using type = std::conditional_t<sizeof(T) == 8, widest_integer, std::int64_t>;
};
template <class T, class F, bool C>
struct accumulator<T, op::custom<F, C>> {
    using type = T;
};

// Integers are added and multiplied as this type: it wraps around as two's complement does, without
// the undefined behaviour of signed overflow.
template <class A>
struct wrapping {
    using type = A;
};
template <class A>
    requires(std::is_integral_v<A> && !std::is_same_v<A, bool>)
struct wrapping<A> {
    using U = std::make_unsigned_t<A>;
    using type = std::conditional_t<(sizeof(U) < sizeof(unsigned)), unsigned, U>;
};

// Multiplies and rounds. A compiler that may contract would fuse the product with a following
// addition (see lanes::scale). nvcc's pass for the device, which drops this function, lacks the
// builtin.
template <class A>
constexpr A scaled(const A& value, double factor) {
    if constexpr (std::is_floating_point_v<A>) {
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDA_ARCH__)
        return __builtin_assoc_barrier(value * static_cast<A>(factor));
#else
        return value * static_cast<A>(factor);
#endif
    } else if constexpr (is_complex_element<A>) {
        return value * static_cast<typename A::value_type>(factor);
    } else {
        return value;  // types that cannot be scaled are refused earlier, so the factor is 1
    }
}

// The product of complex numbers. `a * b` could be contracted, which rounds once where other
// processors round twice; it remains for infinities, which it finds in what looks like NaNs.
template <class A>
constexpr A complex_product(const A& a, const A& b) {
    const A result(scaled(a.real(), b.real()) - scaled(a.imag(), b.imag()),
                   scaled(a.real(), b.imag()) + scaled(a.imag(), b.real()));
    const bool is_nan = result.real() != result.real() && result.imag() != result.imag();
    return is_nan ? a * b : result;
}

// True if b takes the place of a minimum or maximum a: where it is `better`, or a NaN. A NaN stays,
// though a comparison with it may be true under -ffinite-math-only.
template <class A>
constexpr bool takes(bool better, [[maybe_unused]] const A& a, const A& b) {
#if __FINITE_MATH_ONLY__
    return is_nan(b) || (better && !is_nan(a));
#else
    return better || is_nan(b);
#endif
}

template <class Op, class A>
constexpr A combine(const Op& operation, const A& a, const A& b) {
    using plain = plain_op_t<Op>;
    using wide = typename wrapping<A>::type;
    if constexpr (is_custom<plain>) return static_cast<A>(operation.combine(a, b));
    else if constexpr (std::is_same_v<plain, op::sum> || std::is_same_v<plain, op::average>)
        return static_cast<A>(static_cast<wide>(a) + static_cast<wide>(b));
    else if constexpr (std::is_same_v<plain, op::product> && is_complex_element<A>)
        return complex_product(a, b);
    else if constexpr (std::is_same_v<plain, op::product>)
        return static_cast<A>(static_cast<wide>(a) * static_cast<wide>(b));
    else if constexpr (std::is_same_v<plain, op::min>) return takes(b < a, a, b) ? b : a;
    else if constexpr (std::is_same_v<plain, op::max>) return takes(a < b, a, b) ? b : a;
    else if constexpr (std::is_same_v<plain, op::bit_and>) return static_cast<A>(a & b);
    else if constexpr (std::is_same_v<plain, op::bit_or>) return static_cast<A>(a | b);
    else if constexpr (std::is_same_v<plain, op::bit_xor>) return static_cast<A>(a ^ b);
    else if constexpr (std::is_same_v<plain, op::logical_and>) return static_cast<A>(a && b);
    else return static_cast<A>(a || b);
}

// The type of the numbers that an accumulator is divided by.
template <class A>
struct divisor_of {
    using type = A;
};
template <class A>
    requires is_complex_element<A>
struct divisor_of<A> {
    using type = typename A::value_type;
};

// Computes exactly for calls without scales: the integer quotient, rounded by its remainder.
template <class T, class Wide>
T rounded_quotient(Wide sum, int divisor, rounding mode) {
    Wide quotient = sum / divisor;
    const auto rest = std::int64_t(sum % divisor);
    if (mode == rounding::down && rest < 0) quotient += -1;
    if (mode == rounding::nearest && 2 * (rest < 0 ? -rest : rest) >= divisor)
        quotient += sum < 0 ? -1 : 1;
    return static_cast<T>(quotient);
}

template <class A>
constexpr A canonical_nan = std::numeric_limits<A>::quiet_NaN();

// The NaN that a sum returns depends on the order of its operands, and the NaN of an invalid
// operation on the processor. With one NaN for all, the bits do not.
template <class A>
constexpr A canonical(A value) {
    if constexpr (is_complex_element<A>) return {canonical(value.real()), canonical(value.imag())};
    else if constexpr (!std::is_floating_point_v<A>) return value;
#if __FINITE_MATH_ONLY__
    // A choice between a NaN and a number would be the number, so bits are chosen.
    else if constexpr (has_float_bits<A>)
        return std::bit_cast<A>(is_nan(value)
                                    ? std::bit_cast<decltype(bits_of(value))>(canonical_nan<A>)
                                    : bits_of(value));
#endif
    else return value == value ? value : canonical_nan<A>;
}

// True if the elements of a mean are made smaller by a power of two before they are added. bfloat16
// has the range of its accumulator, so that a sum may overflow where the mean does not. The
// accumulator has the bits for the smaller numbers.
template <class T, class Op>
constexpr bool scales_means =
    dtype_traits<T>::id == dtype::bfloat16 && std::is_same_v<plain_op_t<Op>, op::average>;

// Returns this power of two, or 1.
template <class T, class Op>
constexpr double power_before_mean(int divisor) {
    double power = 1;
    if constexpr (scales_means<T, Op>)
        for (int n = 1; n < divisor && n < 1 << 30; n *= 2) power /= 2;
    return power;
}

// `power` is the one that the elements were made smaller by.
template <class T, class Op, class A>
T finished(const A& value, const reduce_args& args, const Op& operation, double power) {
    constexpr bool is_average = std::is_same_v<plain_op_t<Op>, op::average>;
    if constexpr (in_wide_integers<T, Op>) {
        const int divisor = is_average ? args.divisor : 1;
        const double factor = args.prescale * args.postscale;
        if (!is_one(factor)) return scaled_integer<T>(value, factor, divisor, operation.mode);
        if constexpr (is_average) return rounded_quotient<T>(value, divisor, operation.mode);
        else return static_cast<T>(value);
    } else {
        A result = scaled(value, args.postscale);
        if constexpr (is_average)
            result = static_cast<A>(
                result / static_cast<typename divisor_of<A>::type>(args.divisor * power));
        if constexpr (!is_custom<Op>) result = canonical(result);
        return static_cast<T>(result);
    }
}

// True if an operation only asks which elements are zero. Its elements become 0 or 1 when they are
// loaded. So the result is 0 or 1 too, even with one rank.
template <class Op>
constexpr bool is_logical = std::is_same_v<plain_op_t<Op>, op::logical_and> ||
                            std::is_same_v<plain_op_t<Op>, op::logical_or>;

template <class T, class Op, class A>
A loaded(const T& value, double prescale) {
    if constexpr (is_logical<Op>) return static_cast<A>(value != 0);
    else if constexpr (in_wide_integers<T, Op>) return static_cast<A>(value);  // scaled at the end
    else return scaled(static_cast<A>(value), prescale);
}

// Reduces n elements, from number `first` on, to `to`. It is plain C++; every other level gives the
// same bits.
template <class T, class Op>
void reduce_plain(const reduce_args& args, std::size_t first, std::size_t n, std::byte* to) {
    using A = typename accumulator<T, Op>::type;
    const Op& operation = *static_cast<const Op*>(args.op);
    const double power = scales_means<T, Op> ? power_before_mean<T, Op>(args.divisor) : 1,
                 before = args.prescale * power;
    T* const out = reinterpret_cast<T*>(to);
    for (std::size_t i = 0; i < n; ++i) {
        A x = loaded<T, Op, A>(reinterpret_cast<const T*>(args.inputs[0])[first + i], before);
        for (int r = 1; r < args.ranks; ++r)
            x = combine(
                operation, x,
                loaded<T, Op, A>(reinterpret_cast<const T*>(args.inputs[r])[first + i], before));
        out[i] = finished<T>(x, args, operation, power);
    }
}

// Reduces in blocks that stay in the first cache. Compilers vectorise these loops.
template <class T, class Op>
void reduce_plain_blocks(const reduce_args& args, std::size_t first, std::size_t n, std::byte* to) {
    using A = typename accumulator<T, Op>::type;
    constexpr std::size_t block =
        sizeof(A) > tuning::running_block ? 1 : tuning::running_block / sizeof(A);
    const Op& operation = *static_cast<const Op*>(args.op);
    const double power = scales_means<T, Op> ? power_before_mean<T, Op>(args.divisor) : 1,
                 before = args.prescale * power;
    A running[block];
    for (std::size_t done = 0; done < n; done += block) {
        const std::size_t m = n - done < block ? n - done : block;
        const std::byte* const head = args.inputs[0] + (first + done) * sizeof(T);
        for (std::size_t i = 0; i < m; ++i)
            running[i] = loaded<T, Op, A>(element_at<T>(head, i), before);
        for (int r = 1; r < args.ranks; ++r) {
            const std::byte* const next = args.inputs[r] + (first + done) * sizeof(T);
            for (std::size_t i = 0; i < m; ++i)
                running[i] = combine(operation, running[i],
                                     loaded<T, Op, A>(element_at<T>(next, i), before));
        }
        std::byte* const out = to + done * sizeof(T);
        for (std::size_t i = 0; i < m; ++i)
            put_element<T>(out, i, finished<T>(running[i], args, operation, power));
    }
}

}  // namespace hvd::inline v0::detail
