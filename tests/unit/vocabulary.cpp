// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <array>
#include <complex>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <hvd/core/concepts.hpp>

namespace vocabulary_tests {

// Tests of the types that are elements and tensors, and of their views.

namespace {

using hvd::dtype;

struct fixed_point {
    int raw;
    [[maybe_unused]] friend fixed_point operator+(fixed_point a, fixed_point b) {
        return {a.raw + b.raw};
    }
    [[maybe_unused]] friend fixed_point operator*(fixed_point a, fixed_point b) {
        return {a.raw * b.raw / 256};
    }
    [[maybe_unused]] friend auto operator<=>(const fixed_point&, const fixed_point&) = default;
};
struct fp8 {
    unsigned char bits;
};
struct plain {
    int a, b;
};
enum class color : int { red };

template <class... T>
constexpr bool none_is_an_element = !(hvd::element<T> || ...);

template <class T, class... Op>
constexpr bool reduces_with = (hvd::reducible<T, Op> && ...);
template <class T, class... Op>
constexpr bool never_with = !(hvd::reducible<T, Op> || ...);

namespace op = hvd::op;
using rounded_average = op::rounded<op::average>;

// A tensor of a user's library, which owns its memory, and a view of it.
struct matrix {
    std::vector<float> cells = std::vector<float>(6);
};
struct matrix_view {
    float* cells;
};

}  // namespace

}  // namespace vocabulary_tests

template <>
struct hvd::dtype_traits<vocabulary_tests::fixed_point>
    : hvd::arithmetic_element<vocabulary_tests::fixed_point> {
    static constexpr std::string_view name = "fixed_point";
};

template <>
struct hvd::dtype_traits<vocabulary_tests::fp8> : hvd::transport_only<vocabulary_tests::fp8> {
    static constexpr std::string_view name = "fp8_e4m3";
};

template <>
struct hvd::view_traits<vocabulary_tests::matrix> {
    static constexpr bool borrowed = false;
    static auto view(auto& m) { return hvd::view(m.cells.data(), hvd::shape(2, 3)); }
};

template <>
struct hvd::view_traits<vocabulary_tests::matrix_view> {
    static constexpr bool borrowed = true;
    static auto view(const vocabulary_tests::matrix_view& m) { return hvd::view(m.cells, 6); }
};

namespace vocabulary_tests {

TEST_CASE_TEMPLATE("integers are elements by size and sign, whatever they are called", T, char,
                   signed char, unsigned char, short, unsigned short, int, unsigned, long,
                   unsigned long, long long, unsigned long long) {
    constexpr dtype by_size[2][4] = {{dtype::uint8, dtype::uint16, dtype::uint32, dtype::uint64},
                                     {dtype::int8, dtype::int16, dtype::int32, dtype::int64}};
    constexpr int power = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    CHECK(hvd::dtype_traits<T>::id == by_size[std::is_signed_v<T>][power]);
    CHECK(hvd::dtype_name<T>() ==
          (std::is_signed_v<T> ? "int" : "uint") + std::to_string(8 * sizeof(T)));
}

TEST_CASE("floating-point numbers, bool, complex numbers and bytes are elements") {
    CHECK(hvd::dtype_name<bool>() == "bool");
    CHECK(hvd::dtype_name<hvd::float16>() == "float16");
    CHECK(hvd::dtype_name<hvd::bfloat16>() == "bfloat16");
    CHECK(hvd::dtype_name<float>() == "float32");
    CHECK(hvd::dtype_name<double>() == "float64");
    CHECK(hvd::dtype_name<std::complex<float>>() == "complex64");
    CHECK(hvd::dtype_name<std::complex<double>>() == "complex128");
    CHECK(hvd::dtype_name<std::byte>() == "byte");
    CHECK(hvd::dtype_name(dtype::complex128) == "complex128");
#if HVD_HAS_BUILTIN_FLOAT16
    CHECK(hvd::dtype_traits<_Float16>::id == dtype::float16);
#endif
}

TEST_CASE("users' types are elements once they say so, under their name") {
    CHECK(hvd::dtype_name<fixed_point>() == "fixed_point");
    CHECK(hvd::dtype_name<fp8>() == "fp8_e4m3");
    CHECK(hvd::dtype_traits<fp8>::id == dtype::user);
}

TEST_CASE("nothing is an element only because it is trivially copyable") {
    CHECK(none_is_an_element<plain, color, int*, char8_t, char16_t, char32_t, wchar_t, std::string,
                             std::vector<int>, void*, std::nullptr_t, long double>);
}

TEST_CASE("each kind of element has the operations that mean something for it") {
    CHECK(reduces_with<int, op::sum, rounded_average, op::min, op::max, op::product, op::bit_and,
                       op::bit_or, op::bit_xor, op::logical_and, op::logical_or>);
    CHECK(never_with<int, op::average, op::adasum>);
    CHECK(reduces_with<float, op::sum, op::average, op::min, op::max, op::product>);
    CHECK(never_with<float, op::bit_and, op::bit_or, op::bit_xor, op::logical_and, op::logical_or>);
    CHECK(reduces_with<hvd::bfloat16, op::sum, op::average, op::min, op::max, op::product>);
    CHECK(reduces_with<std::complex<float>, op::sum, op::average, op::product>);
    CHECK(never_with<std::complex<float>, op::min, op::max, op::bit_or>);
    CHECK(reduces_with<bool, op::min, op::max, op::bit_and, op::bit_or, op::bit_xor,
                       op::logical_and, op::logical_or>);
    CHECK(never_with<bool, op::sum, op::average, rounded_average, op::product>);
    CHECK(reduces_with<std::byte, op::bit_and, op::bit_or, op::bit_xor>);
    CHECK(never_with<std::byte, op::sum, op::min, op::logical_and>);
    CHECK(reduces_with<fixed_point, op::sum, op::min, op::max, op::product>);
    CHECK(never_with<fixed_point, op::average>);  // it has no operator/
    CHECK(never_with<fp8, op::sum, op::min, op::bit_or>);
    CHECK(never_with<plain, op::sum>);
}

TEST_CASE("a callable reduces what it takes and gives") {
    const auto add = [](fp8 a, fp8 b) { return fp8{static_cast<unsigned char>(a.bits + b.bits)}; };
    CHECK(hvd::reducible<fp8, decltype(hvd::custom(add))>);
    CHECK(!hvd::reducible<float, decltype(hvd::custom(add))>);
    CHECK(decltype(hvd::custom(add, hvd::commutative))::is_commutative);
}

TEST_CASE("contiguous ranges of elements are viewable") {
    CHECK(hvd::viewable<std::vector<float>&>);
    CHECK(hvd::viewable<std::array<int, 3>&>);
    CHECK(hvd::viewable<std::span<const double>>);
    CHECK(hvd::viewable<float(&)[2][3]>);
    CHECK(hvd::viewable<float&>);
    CHECK(hvd::viewable<hvd::tensor_view<int>>);
    CHECK(hvd::viewable<matrix&>);
    CHECK(hvd::viewable<std::string&>);  // its elements are char, which is an int8
    CHECK(!hvd::viewable<std::vector<plain>&>);
    CHECK(!hvd::viewable<std::vector<bool>&>);
    CHECK(!hvd::viewable<std::vector<std::vector<float>>&>);
    CHECK(!hvd::viewable<std::unique_ptr<float[]>&>);
    CHECK(!hvd::viewable<float*&>);
}

TEST_CASE("constness of the elements decides what may be written") {
    CHECK(hvd::writable<std::vector<float>&>);
    CHECK(!hvd::writable<const std::vector<float>&>);
    CHECK(hvd::writable<const std::span<float>&>);
    CHECK(!hvd::writable<std::span<const float>&>);
    CHECK(hvd::writable<hvd::tensor_view<int>>);
    CHECK(!hvd::writable<hvd::tensor_view<const int>>);
    CHECK(!hvd::writable<const float&>);
    CHECK(!hvd::writable<const float(&)[3]>);
}

TEST_CASE("a temporary is borrowed where its memory outlives it") {
    using hvd::detail::is_borrowed;
    CHECK(is_borrowed<std::vector<float>&>);
    CHECK(!is_borrowed<std::vector<float>>);
    CHECK(is_borrowed<std::span<float>>);
    CHECK(is_borrowed<hvd::tensor_view<float>>);
    CHECK(!is_borrowed<std::array<float, 3>>);
    CHECK(!is_borrowed<float>);
    CHECK(!is_borrowed<matrix>);
    CHECK(is_borrowed<matrix_view>);
}

TEST_CASE("views have the address, shape and strides of what they look at") {
    float nested[2][3][4] = {};
    const auto view = hvd::detail::to_view(nested);
    CHECK(view.data() == &nested[0][0][0]);
    CHECK(view.shape() == hvd::shape(2, 3, 4));
    CHECK(view.size() == 24);
    CHECK(view.stride(0) == 12);
    CHECK(view.stride(1) == 4);
    CHECK(view.stride(2) == 1);

    double scalar = 1;
    CHECK(hvd::detail::to_view(scalar).data() == &scalar);
    CHECK(hvd::detail::to_view(scalar).size() == 1);
    matrix m;
    CHECK(hvd::detail::to_view(m).shape() == hvd::shape(2, 3));

    const auto gaps = hvd::view(&scalar, hvd::shape(2, 3), hvd::strides(-10, 2));
    CHECK(gaps.stride(0) == -10);
    CHECK(gaps.stride(1) == 2);
    const hvd::tensor_view<const double, hvd::host, 2, hvd::strided> constant = gaps;
    CHECK(constant.stride(0) == -10);
    CHECK(hvd::view(nested[0][0], hvd::shape(0, 5)).size() == 0);
    CHECK(hvd::tensor_view<float>().size() == 0);
}

TEST_CASE("views are trivially copyable and carry strides only where asked for") {
    static_assert(std::is_trivially_copyable_v<hvd::tensor_view<float>>);
    static_assert(
        std::is_trivially_copyable_v<hvd::tensor_view<float, hvd::device, 4, hvd::strided>>);
    static_assert(std::is_trivially_copyable_v<hvd::op::custom<int (*)(int, int), false>>);
    CHECK(sizeof(hvd::tensor_view<float, hvd::host, 2>) == 3 * sizeof(void*));
    CHECK(
        !std::is_same_v<hvd::tensor_view<float, hvd::host>, hvd::tensor_view<float, hvd::device>>);
}

TEST_CASE("a view on the host has its elements, as they lie in memory") {
    std::vector<int> x = {1, 2, 3, 4, 5, 6};
    const auto all = hvd::view(x.data(), x.size());
    CHECK(std::vector<int>(all.begin(), all.end()) == x);
    CHECK(all.span().data() == x.data());
    CHECK(all.span().size() == 6);
    CHECK(all[4] == 5);
    all[4] = 50;
    CHECK(x[4] == 50);
    const auto matrix = hvd::view(std::as_const(x).data(), hvd::shape(2, 3));
    int sum = 0;
    for (const int element : matrix) sum += element;
    CHECK(sum == 66);
    CHECK(matrix.span()[3] == 4);
    const auto every_second = hvd::view(x.data(), hvd::shape(3), hvd::strides(2));
    CHECK(every_second[2] == 50);
    CHECK(hvd::view(x.data(), hvd::shape()).span().size() == 1);
    CHECK(hvd::tensor_view<int>().begin() == hvd::tensor_view<int>().end());
}

}  // namespace vocabulary_tests
