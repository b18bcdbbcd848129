// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Inputs that every rank can compute for every other. Their reductions are done serially, in a type
// in which they are exact.

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <hvd/threads.hpp>

namespace hvd_test {

// Memory of n elements, also of bool.
template <class T>
class tensor {
public:
    explicit tensor(std::size_t n = 0) : size_(n), data_(new T[n]()) {}
    tensor(std::size_t n, T value) : tensor(n) { std::fill_n(data(), n, value); }
    tensor(const tensor& other) : tensor(other.size_) { std::copy_n(other.data(), size_, data()); }

    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    std::size_t size() const { return size_; }
    T& operator[](std::size_t i) { return data_[i]; }
    const T& operator[](std::size_t i) const { return data_[i]; }

private:
    std::size_t size_;
    std::unique_ptr<T[]> data_;
};

// A user's element with arithmetic: numbers modulo 1009.
struct modular {
    std::int32_t value = 0;
    friend modular operator+(modular a, modular b) { return {(a.value + b.value) % 1009}; }
    friend modular operator*(modular a, modular b) { return {(a.value * b.value) % 1009}; }
    friend bool operator<(modular a, modular b) { return a.value < b.value; }
    friend bool operator==(modular, modular) = default;
};

// A user's element that is only moved. No power of two is a multiple of its size.
struct triple {
    unsigned char bytes[3];
    friend bool operator==(const triple&, const triple&) = default;
};

template <class T>
constexpr bool is_complex = false;
template <class T>
constexpr bool is_complex<std::complex<T>> = true;

// The inputs are small enough to be exact in every type. So are their sums and products over seven
// ranks if the type holds them. The pattern's period is a prime, so that a chunk in a wrong place
// shows.
constexpr std::size_t period = 251;

template <class T>
T element(int rank, std::size_t i) {
    const std::size_t place = i % period;
    const int digit = int((place * 7 + std::size_t(rank) * 3) % 9),
              sign = int((place + std::size_t(rank)) % 2) * 2 - 1;
    if constexpr (std::is_same_v<T, bool>) return (place + std::size_t(rank)) % 3 != 0;
    else if constexpr (std::is_same_v<T, std::byte>)
        return std::byte((place * 37 + std::size_t(rank) * 11) & 255);
    else if constexpr (std::is_same_v<T, modular>) return {digit * 100};
    else if constexpr (std::is_same_v<T, triple>)
        return {{static_cast<unsigned char>(place), static_cast<unsigned char>(rank),
                 static_cast<unsigned char>(digit)}};
    else if constexpr (is_complex<T>) {
        using R = typename T::value_type;
        return {R(digit % 3 * sign), R(digit / 3 - 1)};
    } else if constexpr (std::is_unsigned_v<T>) return T(digit);
    else return T(float(digit * sign));
}

template <class T>
tensor<T> input(int rank, std::size_t n) {
    tensor<T> result(n);
    for (std::size_t i = 0; i < std::min(n, period); ++i) result[i] = element<T>(rank, i);
    for (std::size_t i = period; i < n; i += period)
        std::copy_n(result.data(), std::min(period, n - i), result.data() + i);
    return result;
}

// The type in which the reference is computed without loss.
template <class T>
struct exact {
    using type = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
};
template <>
struct exact<std::byte> {
    using type = std::int64_t;
};
template <>
struct exact<modular> {
    using type = modular;
};
template <class R>
struct exact<std::complex<R>> {
    using type = std::complex<double>;
};

template <class Op>
constexpr bool is_average = std::is_same_v<hvd::detail::plain_op_t<Op>, hvd::op::average>;

template <class Op, class W>
W serially(const Op&, const W& a, const W& b) {
    using plain = hvd::detail::plain_op_t<Op>;
    if constexpr (std::is_same_v<plain, hvd::op::sum> || is_average<Op>) return a + b;
    else if constexpr (std::is_same_v<plain, hvd::op::product>) return a * b;
    else if constexpr (std::is_same_v<plain, hvd::op::min>) return b < a ? b : a;
    else if constexpr (std::is_same_v<plain, hvd::op::max>) return a < b ? b : a;
    else if constexpr (std::is_same_v<plain, hvd::op::bit_and>) return a & b;
    else if constexpr (std::is_same_v<plain, hvd::op::bit_or>) return a | b;
    else if constexpr (std::is_same_v<plain, hvd::op::bit_xor>) return a ^ b;
    else if constexpr (std::is_same_v<plain, hvd::op::logical_and>) return (a != 0) && (b != 0);
    else return (a != 0) || (b != 0);
}

inline std::int64_t rounded_quotient(std::int64_t sum, int by, hvd::rounding mode) {
    const double quotient = double(sum) / by;
    if (mode == hvd::rounding::nearest) return std::int64_t(std::round(quotient));
    if (mode == hvd::rounding::down) return std::int64_t(std::floor(quotient));
    return std::int64_t(std::trunc(quotient));
}

template <class T, class Op, class W>
T averaged(const Op& op, const W& sum, int by) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(rounded_quotient(sum, by, op.mode));
    else if constexpr (is_complex<T>) return T(sum) / typename T::value_type(by);
    else if constexpr (std::is_same_v<T, double>) return sum / by;
    else return T(float(sum) / float(by));  // computed in float and rounded once
}

// Returns the reduction over `ranks` ranks of their elements i.
template <class T, class Op>
T reduced(const Op& op, int ranks, std::size_t i) {
    using W = typename exact<T>::type;
    const auto wide = [&](int rank) {
        const T x = element<T>(rank, i);
        if constexpr (is_complex<T>) return W(x.real(), x.imag());
        else if constexpr (std::is_same_v<T, modular>) return x;
        else if constexpr (std::is_integral_v<T> || std::is_same_v<T, std::byte>)
            return static_cast<W>(x);
        else return W(float(x));
    };
    W result = wide(0);
    for (int rank = 1; rank < ranks; ++rank) result = serially(op, result, wide(rank));
    if constexpr (hvd::detail::is_logical<Op>) result = W(result != W(0));
    if constexpr (is_average<Op>) return averaged<T>(op, result, ranks);
    else if constexpr (is_complex<T> || std::is_integral_v<T> || std::is_same_v<T, modular> ||
                       std::is_same_v<T, double>)
        return static_cast<T>(result);
    else if constexpr (std::is_same_v<T, std::byte>) return std::byte(result);
    else return T(float(result));
}

// Returns one period of the reference: element i equals element i + period.
template <class T, class Op>
tensor<T> reference(const Op& op, int ranks) {
    tensor<T> result(period);
    for (std::size_t i = 0; i < period; ++i) result[i] = reduced<T>(op, ranks, i);
    return result;
}

constexpr std::size_t wrong_size = std::numeric_limits<std::size_t>::max();

// Returns how many of the n expected elements differ from expected(i).
template <class Values, class Expected>
std::size_t wrong(const Values& values, std::size_t n, Expected expected) {
    if (values.size() != n) return wrong_size;
    std::size_t count = 0;
    for (std::size_t i = 0; i < n; ++i) count += values[i] == expected(i) ? 0 : 1;
    return count;
}

// Compares with one period of a reference, beginning with its element `first`. It compares the
// bytes of whole periods before single elements, since these tests are built without optimisation.
template <class Values, class T>
std::size_t wrong(const Values& values, std::size_t n, const tensor<T>& one_period,
                  std::size_t first = 0) {
    if (values.size() != n) return wrong_size;
    const auto* const data = values.data();
    static_assert(sizeof *data == sizeof(T));
    std::size_t count = 0, run = 0;
    for (std::size_t i = 0; i < n; i += run) {
        const T* const expected = one_period.data() + (first + i) % period;
        run = std::min(period - (first + i) % period, n - i);
        if (std::memcmp(data + i, expected, run * sizeof(T)) == 0) continue;
        for (std::size_t k = 0; k < run; ++k) count += data[i + k] == expected[k] ? 0 : 1;
    }
    return count;
}

// Compares with the input of `rank`, beginning with its element `first`.
template <class T, class Values>
std::size_t wrong_input(const Values& values, std::size_t n, int rank, std::size_t first = 0) {
    return wrong(values, n, input<T>(rank, period), first);
}

// Rank `rank`'s slice of n elements that are split evenly. The first n % size ranks have one more.
struct part {
    part(std::size_t n, int rank, int size)
        : count(n / std::size_t(size) + (std::size_t(rank) < n % std::size_t(size) ? 1 : 0)),
          first(n / std::size_t(size) * std::size_t(rank) +
                std::min(std::size_t(rank), n % std::size_t(size))) {}
    std::size_t count, first;
};

inline auto every_operation() {
    using hvd::rounding;
    return std::tuple(hvd::sum, hvd::average, hvd::average(rounding::toward_zero),
                      hvd::average(rounding::nearest), hvd::average(rounding::down), hvd::min,
                      hvd::max, hvd::product, hvd::bit_and, hvd::bit_or, hvd::bit_xor,
                      hvd::logical_and, hvd::logical_or);
}

// Calls f(op) for each operation that makes sense for T. Roundings are for integers only.
template <class T, class Comm, class F>
void for_each_operation(const Comm&, F f) {
    const auto one = [&](const auto& op) {
        using Op = std::remove_cvref_t<decltype(op)>;
        constexpr bool rounding_in_vain =
            hvd::detail::is_rounded<Op> && !hvd::detail::is_integer_element<T>;
        if constexpr (hvd::reducible<T, Op, typename Comm::backend_type> && !rounding_in_vain &&
                      !(std::is_same_v<T, modular> && is_average<Op>))
            f(op);
    };
    std::apply([&](const auto&... op) { (one(op), ...); }, every_operation());
}

template <class Op>
std::string name_of(const Op&) {
    return std::string(hvd::detail::op_names[Op::id]) +
           (hvd::detail::is_rounded<Op> ? " (rounded)" : "");
}

// The element that changes no result of an operation, and zero for a mean of nothing.
template <class T, class Op>
T of_none(const Op&) {
    using std::is_same_v;
    constexpr bool min = is_same_v<Op, hvd::op::min>, max = is_same_v<Op, hvd::op::max>;
    if constexpr (min || max) {
        if constexpr (hvd::detail::is_float_element<T>)
            return T(min ? std::numeric_limits<float>::infinity()
                         : -std::numeric_limits<float>::infinity());
        else return min ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest();
    } else if constexpr (is_same_v<Op, hvd::op::bit_and>) {
        if constexpr (is_same_v<T, bool>) return true;
        else return T(~T(0));
    } else if constexpr (is_same_v<Op, hvd::op::product> || is_same_v<Op, hvd::op::logical_and>) {
        return T(1.0f);
    } else {
        return T(0.0f);
    }
}

// Empty, small and odd sizes, and one above the largest chunk.
constexpr std::size_t sizes[] = {0, 7, 100003};

}  // namespace hvd_test

template <>
struct hvd::dtype_traits<hvd_test::modular> : hvd::arithmetic_element<hvd_test::modular> {
    static constexpr std::string_view name = "modular";
};
template <>
struct hvd::dtype_traits<hvd_test::triple> : hvd::transport_only<hvd_test::triple> {
    static constexpr std::string_view name = "triple";
};

// A file that is compiled for each of the two halves of the element types uses HVD_TEST_ELEMENTS:
// see meson.build.
#define HVD_TEST_INTEGERS                                                               \
    std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, \
        std::uint32_t, std::uint64_t
#define HVD_TEST_OTHERS                                                                          \
    hvd::float16, hvd::bfloat16, float, double, std::complex<float>, std::complex<double>, bool, \
        std::byte, hvd_test::modular
#if defined(HVD_TEST_OF_INTEGERS)
#define HVD_TEST_ELEMENTS HVD_TEST_INTEGERS
#else
#define HVD_TEST_ELEMENTS HVD_TEST_OTHERS
#endif
