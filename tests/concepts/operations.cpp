// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <complex>
#include <cstdint>
#include <functional>

#include <hvd/hvd.hpp>

namespace {

namespace op = hvd::op;
using rounded_average = decltype(hvd::average(hvd::rounding::toward_zero));
using std::int32_t;

template <class Op, class... T>
constexpr bool reduces_all = (hvd::reducible<T, Op> && ...);
template <class Op, class... T>
constexpr bool reduces_none = !(hvd::reducible<T, Op> || ...);

struct backend_without_products {
    template <class T, class Op>
    static constexpr bool reduces = !std::is_same_v<Op, op::product>;
};

}  // namespace

static_assert(reduces_all<op::sum, int32_t, std::uint8_t, float, double, hvd::float16,
                          hvd::bfloat16, std::complex<float>>);
static_assert(reduces_all<op::product, int32_t, float, std::complex<double>>);
static_assert(reduces_none<op::sum, bool, int*, std::complex<int>>);

static_assert(reduces_all<op::average, float, double, hvd::bfloat16, std::complex<float>>);
static_assert(reduces_none<op::average, int32_t, std::uint64_t, bool>);
static_assert(reduces_all<rounded_average, int32_t, std::uint64_t>);

static_assert(reduces_all<op::min, int32_t, float, hvd::float16>);
static_assert(reduces_none<op::min, std::complex<float>>);
static_assert(reduces_none<op::max, std::complex<double>>);

static_assert(reduces_all<op::bit_and, int32_t, std::uint8_t, bool>);
static_assert(reduces_none<op::bit_xor, float, double, hvd::float16>);
static_assert(reduces_all<op::logical_or, bool, int32_t>);
static_assert(reduces_none<op::logical_and, float>);

static_assert(reduces_all<decltype(hvd::custom([](float a, float) { return a; })), float>);
static_assert(reduces_none<decltype(hvd::custom([](int* a, int*) { return a; })), float>);

// A backend can exclude operations.
static_assert(hvd::reducible<float, op::sum, backend_without_products>);
static_assert(!hvd::reducible<float, op::product, backend_without_products>);

// Those of the standard library are hvd's, so that they take its kernels.
namespace look_alike {
template <class = void>
struct plus {
    float operator()(float a, float b) const { return a + b; }
};
}  // namespace look_alike
template <class Op, class Ours>
constexpr bool is_ours = std::is_same_v<hvd::detail::operation_of<Op>, Ours>;
static_assert(is_ours<std::plus<>, op::sum> && is_ours<std::multiplies<>, op::product>);
static_assert(is_ours<std::bit_and<>, op::bit_and> && is_ours<std::bit_or<>, op::bit_or>);
static_assert(is_ours<std::bit_xor<>, op::bit_xor>);
static_assert(is_ours<std::logical_and<>, op::logical_and>);
static_assert(is_ours<std::logical_or<>, op::logical_or>);
static_assert(!is_ours<look_alike::plus<>, op::sum> && !is_ours<std::plus<double>, op::sum>);

// Other types are no operations.
static_assert(!hvd::reducible<float, int> && !hvd::reducible<float, hvd::root>);
