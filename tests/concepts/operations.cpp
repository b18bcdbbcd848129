// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <complex>
#include <cstdint>

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

// Other types are no operations.
static_assert(!hvd::reducible<float, int> && !hvd::reducible<float, hvd::root>);
