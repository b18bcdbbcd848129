// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <complex>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <hvd/kernel/places.hpp>
#include <hvd/kernel/reduce.hpp>

#include "checksum.hpp"

namespace kernel_levels_tests {

// Every level of instructions gives the bits of plain C++, for all elements and operations, and
// plain C++ gives the same bits on every processor. Levels that this machine cannot run are
// reported as skipped.

namespace {

using hvd::bfloat16;
using hvd::float16;
using hvd::detail::reduce_args;
using hvd::detail::simd_level;
namespace op = hvd::op;

template <class F>
void on_levels(F f) {
    for (const simd_level l : hvd::detail::simd_levels) {
        const std::string name = hvd::detail::simd_level_names[int(l)];
        INFO("level ", name);
        if (hvd::detail::runs_here(l)) f(l);
        else MESSAGE("skipped: this machine does not run level ", name);
    }
}

// Returns random bits: NaNs of all kinds, infinities, subnormal numbers and both zeros are among
// them. Every third number is an ordinary one, so that sums are not all NaN.
template <class T>
std::vector<T> any_bits(std::size_t n, unsigned seed) {
    std::mt19937_64 random(seed);
    std::vector<T> x(n);
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t bits = random();
        if constexpr (hvd::detail::is_float_element<T>) {
            using A = typename hvd::dtype_traits<T>::accumulator;
            const A odd[] = {std::numeric_limits<A>::infinity(),
                             -std::numeric_limits<A>::infinity(),
                             A(0),
                             -A(0),
                             std::numeric_limits<A>::denorm_min(),
                             std::numeric_limits<A>::max()};
            if (bits % 3 == 0)
                std::memcpy(&x[i], reinterpret_cast<const char*>(&bits) + 8 - sizeof(T), sizeof(T));
            else if (bits % 7 == 0) x[i] = T(odd[bits / 7 % 6]);
            else x[i] = T(A(double(std::int64_t(bits)) * 0x1p-60));
        } else if constexpr (hvd::detail::is_complex_element<T>) {
            using A = typename T::value_type;
            const A infinity = std::numeric_limits<A>::infinity();
            x[i] = T(A(double(std::int32_t(bits)) * 0x1p-29),
                     A(double(std::int32_t(bits >> 32)) * 0x1p-29));
            if (bits % 13 == 0) x[i] = T(infinity, A(0));
        } else {
            std::memcpy(&x[i], &bits, sizeof(T));
        }
    }
    return x;
}

struct example {
    int ranks;
    std::size_t count, misaligned;
    double prescale, postscale;
    int over;  // the input that is overwritten, or -1
    int places;
    bool streaming;
};

template <class T, class Op, simd_level L>
void reduce_at(const reduce_args& args) {
    hvd::detail::reduce_elements_at<T, Op>(L, args);
}

template <class T, class Op>
hvd::detail::reduce_function reducer(simd_level l) {
    switch (l) {
        case simd_level::avx512: return &reduce_at<T, Op, simd_level::avx512>;
        case simd_level::avx2: return &reduce_at<T, Op, simd_level::avx2>;
        case simd_level::baseline: return &reduce_at<T, Op, simd_level::baseline>;
        default: return &reduce_at<T, Op, simd_level::plain>;
    }
}

// Returns the results of one level: every output's bytes, one after the other.
template <class T, class Op>
std::vector<std::byte> results(simd_level l, const Op& operation, const example& e,
                               std::size_t ahead = 0) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<const std::byte*> inputs;
    const std::size_t bytes = e.count * sizeof(T), at = e.misaligned * sizeof(T);
    for (int r = 0; r < e.ranks; ++r) {
        memory.emplace_back(at + bytes + 64, std::byte(0x5a));
        const auto x = any_bits<std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>>(
            e.count, unsigned(r + 1));
        if (bytes != 0) std::memcpy(memory.back().data() + at, x.data(), bytes);
        if constexpr (std::is_same_v<T, bool>)
            for (std::size_t i = 0; i < bytes; ++i) memory.back()[at + i] &= std::byte(1);
        inputs.push_back(memory.back().data() + at);
    }
    std::vector<std::vector<std::byte>> fresh(
        std::size_t(e.places), std::vector<std::byte>(at + bytes + 64, std::byte(0x5a)));
    std::vector<std::byte*> outputs;
    for (auto& place : fresh) outputs.push_back(place.data() + at);
    if (e.over >= 0) outputs[0] = const_cast<std::byte*>(inputs[std::size_t(e.over)]);
    reduce_args args{&operation, inputs.data(), e.ranks,     e.ranks, outputs[0],
                     e.count,    e.prescale,    e.postscale, ahead};
    if (e.places == 1 && !e.streaming) hvd::detail::reduce_elements_at<T, Op>(l, args);
    else
        hvd::detail::reduce_to_places(reducer<T, Op>(l), args, sizeof(T), inputs.data(),
                                      outputs.data(), e.places, e.streaming);

    std::vector<std::byte> all;
    for (std::byte* place : outputs)  // with the guards around them, which must stay untouched
        all.insert(all.end(), place - at, place + bytes + 64);
    return all;
}

// Adds the results to a checksum.
template <class T, class Op>
void same_on_all_levels(hvd_test::checksum& all, const Op& operation, bool scales) {
    INFO(hvd::dtype_name<T>(), ", operation ", op::sum::id + Op::id);
    std::vector<example> examples;
    for (const int ranks : {1, 2, 3, 4, 7})
        for (const std::size_t count : {0, 1, 3, 15, 16, 31, 33, 63, 64, 127, 129, 257, 1031})
            examples.push_back({ranks, count, count % 5, 1, 1, -1, 1, false});
    for (const int over : {0, 1, 2}) examples.push_back({3, 300, 1, 1, 1, over, 1, false});
    for (const int over : {-1, 0, 2})
        for (const bool streaming : {false, true})
            examples.push_back({3, 20011, 3, 1, 1, over, 3, streaming});
    examples.push_back({2, 9001, 1, 1, 1, -1, 1, true});
    if (scales)
        for (const int ranks : {1, 2, 3})
            examples.push_back({ranks, 500, 1, 0.3, 1.7, -1, 1, false});
    if (scales) examples.push_back({2, 200, 0, 0x1p-9, -1, -1, 1, false});
    for (const example& e : examples) {
        CAPTURE(e.ranks);
        CAPTURE(e.count);
        CAPTURE(e.over);
        CAPTURE(e.places);
        CAPTURE(e.streaming);
        const auto expected = results<T>(simd_level::plain, operation, e);
        all.add(expected);
        for (const simd_level l : hvd::detail::simd_levels) {
            if (!hvd::detail::runs_here(l)) continue;
            CAPTURE(int(l));
            REQUIRE(results<T>(l, operation, e) == expected);
            // fetching before reading
            if (e.places == 1) REQUIRE(results<T>(l, operation, e, 96) == expected);
        }
    }
}

// The checksums of all results of a type.
constexpr struct {
    hvd::dtype id;
    std::uint64_t value;
} known[] = {
    {hvd::dtype::float32, 0xab702ac3ae84c73e},    {hvd::dtype::float64, 0x8a9f7113257d8b02},
    {hvd::dtype::float16, 0xc79cd60c26b664d4},    {hvd::dtype::bfloat16, 0xee09dfcc353ed6c4},
    {hvd::dtype::int8, 0x3e3c290cf5864434},       {hvd::dtype::uint8, 0xe8975ffa2755c75f},
    {hvd::dtype::int16, 0x1ae2b145b66b5cec},      {hvd::dtype::uint16, 0xb68f5483f46f6b76},
    {hvd::dtype::int32, 0x41a6780a1847cdb5},      {hvd::dtype::uint32, 0x66a6bf5c430d4453},
    {hvd::dtype::int64, 0x17956a7192ff11e6},      {hvd::dtype::uint64, 0xbcafe28e3254713e},
    {hvd::dtype::boolean, 0xf3ee365ff6282ea5},    {hvd::dtype::complex64, 0x881ec6cfa48e2026},
    {hvd::dtype::complex128, 0x482b518500ff01f1}, {hvd::dtype::byte, 0x9a55e8cca5ebb9c9},
};

template <class T>
void is_known(const hvd_test::checksum& all) {
    constexpr hvd::dtype id = hvd::dtype_traits<T>::id;
    INFO(hvd::dtype_name(id), " has the checksum ", all.value);
    const auto* const expected =
        std::find_if(std::begin(known), std::end(known), [&](auto& k) { return k.id == id; });
    REQUIRE(expected != std::end(known));
    CHECK(all.value == expected->value);
}

}  // namespace

TEST_CASE("this machine names the levels that it runs") {
    on_levels([](simd_level l) { CHECK(int(l) <= int(hvd::detail::best_level())); });
}

TEST_CASE_TEMPLATE("floats have the same bits on all levels", T, float, double, float16, bfloat16) {
    hvd_test::checksum all;
    same_on_all_levels<T>(all, hvd::sum, true);
    same_on_all_levels<T>(all, hvd::average, true);
    same_on_all_levels<T>(all, hvd::product, true);
    same_on_all_levels<T>(all, hvd::min, true);
    same_on_all_levels<T>(all, hvd::max, true);
    is_known<T>(all);
}

TEST_CASE_TEMPLATE("integers have the same bits on all levels", T, std::int8_t, std::uint8_t,
                   std::int16_t, std::uint16_t, std::int32_t, std::uint32_t, std::int64_t,
                   std::uint64_t) {
    hvd_test::checksum all;
    same_on_all_levels<T>(all, hvd::sum, false);
    same_on_all_levels<T>(all, hvd::product, false);
    same_on_all_levels<T>(all, hvd::min, false);
    same_on_all_levels<T>(all, hvd::max, false);
    same_on_all_levels<T>(all, hvd::bit_and, false);
    same_on_all_levels<T>(all, hvd::bit_or, false);
    same_on_all_levels<T>(all, hvd::bit_xor, false);
    same_on_all_levels<T>(all, hvd::logical_and, false);
    same_on_all_levels<T>(all, hvd::logical_or, false);
    for (const hvd::rounding mode :
         {hvd::rounding::nearest, hvd::rounding::down, hvd::rounding::toward_zero}) {
        same_on_all_levels<T>(all, hvd::average(mode), true);
        same_on_all_levels<T>(all, hvd::sum(mode), true);
    }
    is_known<T>(all);
}

TEST_CASE("bool and bytes have the same bits on all levels") {
    hvd_test::checksum booleans, bytes;
    same_on_all_levels<bool>(booleans, hvd::min, false);
    same_on_all_levels<bool>(booleans, hvd::max, false);
    same_on_all_levels<bool>(booleans, hvd::logical_and, false);
    same_on_all_levels<bool>(booleans, hvd::logical_or, false);
    same_on_all_levels<bool>(booleans, hvd::bit_xor, false);
    is_known<bool>(booleans);
    same_on_all_levels<std::byte>(bytes, hvd::bit_or, false);
    is_known<std::byte>(bytes);
}

TEST_CASE_TEMPLATE("complex numbers have the same bits on all levels", T, std::complex<float>,
                   std::complex<double>) {
    hvd_test::checksum all;
    same_on_all_levels<T>(all, hvd::sum, true);
    same_on_all_levels<T>(all, hvd::average, true);
    same_on_all_levels<T>(all, hvd::product, true);
    is_known<T>(all);
}

TEST_CASE("every 16-bit float is read and rounded alike on all levels") {
    std::vector<std::uint16_t> all(65536), plain(65536), vectors(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::uint16_t(i);
    const auto check = [&]<class T>(T, double factor) {
        const std::byte* input = reinterpret_cast<const std::byte*>(all.data());
        const auto run = [&](simd_level l, std::vector<std::uint16_t>& out) {
            hvd::detail::reduce_elements_at<T, op::sum>(
                l, {&hvd::sum, &input, 1, 1, reinterpret_cast<std::byte*>(out.data()), all.size(),
                    factor, 1});
        };
        run(simd_level::plain, plain);
        on_levels([&](simd_level l) {
            run(l, vectors);
            CHECK(vectors == plain);
        });
    };
    for (const double factor : {1.0, 0.3, 1e-3, 777.0, 0x1p-20, 0x1p20}) {
        check(float16{}, factor);
        check(bfloat16{}, factor);
    }
}

TEST_CASE("there is one NaN") {
    const float nans[] = {-std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::signaling_NaN()};
    const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(&nans[0]),
                                 reinterpret_cast<const std::byte*>(&nans[1])};
    float sum;
    hvd::detail::reduce_elements<float, op::sum>(
        {&hvd::sum, inputs, 2, 2, reinterpret_cast<std::byte*>(&sum), 1, 1, 1});
    CHECK(std::bit_cast<std::uint32_t>(sum) == 0x7fc00000u);
}

}  // namespace kernel_levels_tests
