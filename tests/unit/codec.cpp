// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <hvd/fusion/codec.hpp>

#include "checksum.hpp"

namespace codec_tests {

// Casts for the wire, against element-wise conversions. They are equal on every level of
// instructions, and on every processor.

namespace {

using hvd::bfloat16;
using hvd::float16;
using hvd::detail::simd_level;

// Returns random bits, ordinary numbers, and ties of both roundings: numbers halfway between two
// numbers of 16 bits.
std::vector<float> any_floats(std::size_t n) {
    std::mt19937 random(7);
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) {
        std::uint32_t bits = std::uint32_t(random());
        if (i % 5 == 0) bits = (bits & 0xffff0000) | 0x8000;
        if (i % 5 == 3) bits = (bits & 0x83ffe000) | 0x3c001000;
        if (i % 5 == 0 || i % 5 == 1 || i % 5 == 3) std::memcpy(&x[i], &bits, 4);
        else x[i] = float(std::int32_t(bits)) * 0x1p-30f;
    }
    return x;
}

template <class From, class To>
void same_on_all_levels(hvd_test::checksum& all, const std::vector<From>& from, bool feedback) {
    for (const std::size_t n :
         {std::size_t(0), std::size_t(1), std::size_t(15), std::size_t(33), from.size() - 1}) {
        for (const double scale : {1.0, 0.3, 0x1p-14}) {
            struct result {
                std::vector<To> to;
                std::vector<float> residual;
            };
            const auto run = [&](simd_level l) {
                result r{std::vector<To>(n + 3, To(42.0f)), std::vector<float>(n + 1)};
                for (std::size_t i = 0; i <= n; ++i)
                    r.residual[i] = float(int(i % 17) - 8) * 0.001f;
                hvd::detail::cast_elements_at<From, To>(
                    l, {reinterpret_cast<const std::byte*>(from.data() + 1),
                        reinterpret_cast<std::byte*>(r.to.data() + 1), n, scale,
                        feedback ? r.residual.data() + 1 : nullptr});
                return r;
            };
            const result expected = run(simd_level::plain);
            all.add(expected.to);
            all.add(expected.residual);
            for (const simd_level l : hvd::detail::simd_levels) {
                if (!hvd::detail::runs_here(l)) continue;
                CAPTURE(int(l));
                CAPTURE(n);
                CAPTURE(scale);
                const result got = run(l);
                REQUIRE(std::memcmp(got.to.data(), expected.to.data(),
                                    got.to.size() * sizeof(To)) == 0);
                REQUIRE(std::memcmp(got.residual.data(), expected.residual.data(),
                                    got.residual.size() * 4) == 0);
            }
        }
    }
}

}  // namespace

TEST_CASE_TEMPLATE("encoding and decoding give the same bits on all levels", T, bfloat16, float16) {
    hvd_test::checksum all;
    same_on_all_levels<float, T>(all, any_floats(5003), false);
    same_on_all_levels<float, T>(all, any_floats(5003), true);
    std::vector<T> numbers;
    for (unsigned bits = 0; bits < 65536; ++bits)
        numbers.push_back(T::from_bits(std::uint16_t(bits)));
    same_on_all_levels<T, float>(all, numbers, false);
    CHECK(all.value == (std::is_same_v<T, float16> ? 0x8ee9faf3e30eabdf : 0x6ada84cfc9715105));
}

TEST_CASE_TEMPLATE("encoding scales, then rounds; decoding converts, then scales", T, bfloat16,
                   float16) {
    const std::vector<float> x = any_floats(100);
    std::vector<T> wire(x.size());
    std::vector<float> back(x.size());
    hvd::codec::cast_t<T>::encode(x.data(), x.size(), wire.data(), 0.25);
    hvd::codec::cast_t<T>::decode(wire.data(), wire.size(), back.data(), 4);
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(x[i])) {
            CHECK(std::isnan(back[i]));
            continue;
        }
        CHECK(wire[i].bits() == T(x[i] * 0.25f).bits());
        CHECK(back[i] == float(wire[i]) * 4);
    }
}

TEST_CASE_TEMPLATE("error feedback loses nothing over many steps", T, bfloat16, float16) {
    const std::vector<float> gradient = {1.0f / 3, 0.001f, -2.7f, 1e-6f, 100.01f};
    std::vector<float> residual(gradient.size()), sum(gradient.size()), plain(gradient.size());
    std::vector<T> wire(gradient.size());
    const int steps = 1000;
    for (int s = 0; s < steps; ++s) {
        hvd::codec::error_feedback_t<hvd::codec::cast_t<T>>::encode(
            gradient.data(), gradient.size(), wire.data(), 1, residual.data());
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += float(wire[i]);
    }
    for (std::size_t i = 0; i < sum.size(); ++i)
        CHECK(sum[i] / float(steps) == doctest::Approx(gradient[i]).epsilon(1e-4));
}

TEST_CASE("a residual is never an infinity or a NaN") {
    const std::vector<float> x = {1e30f, std::numeric_limits<float>::infinity(),
                                  std::numeric_limits<float>::quiet_NaN(), 1};
    std::vector<float> residual(x.size());
    std::vector<float16> wire(x.size());
    hvd::codec::error_feedback_t<hvd::codec::cast_t<float16>>::encode(
        x.data(), x.size(), wire.data(), 1, residual.data());
    CHECK(std::isinf(float(wire[0])));
    CHECK(residual == std::vector<float>(x.size()));
}

}  // namespace codec_tests
