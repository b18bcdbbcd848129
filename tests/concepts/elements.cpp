// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <complex>
#include <cstdint>
#include <string>

#include <hvd/hvd.hpp>

namespace {

template <class... T>
constexpr bool all_elements = (hvd::transportable<T> && ...);
template <class... T>
constexpr bool no_elements = !(hvd::transportable<T> || ...);

struct plain {
    float x;
};

struct opted_in {
    float x;
};

}  // namespace

template <>
struct hvd::dtype_traits<opted_in> : hvd::transport_only<opted_in> {
    static constexpr std::string_view name = "opted_in";
};

static_assert(all_elements<std::int8_t, std::int16_t, std::int32_t, std::int64_t>);
static_assert(all_elements<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>);
static_assert(all_elements<char, signed char, short, int, long, long long, unsigned long long>);
static_assert(all_elements<bool, float, double, hvd::float16, hvd::bfloat16>);
static_assert(all_elements<std::complex<float>, std::complex<double>>);
static_assert(all_elements<opted_in>);

// A type is not an element only because it can be copied byte by byte.
static_assert(no_elements<plain, int*, const char*, void*, std::nullptr_t>);
static_assert(no_elements<std::string, std::complex<int>, long double, wchar_t, char8_t>);
