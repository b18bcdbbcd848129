// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "half.hpp"

#if defined(__STDCPP_FLOAT16_T__) || defined(__STDCPP_BFLOAT16_T__)
#include <stdfloat>
#endif

namespace hvd::inline v0 {

/// The type of an element on the wire; ranks compare it before data moves.
enum class dtype : std::uint8_t {
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    boolean,
    float16,
    bfloat16,
    float32,
    float64,
    complex64,
    complex128,
    byte,
    user,  ///< a type for which a user specialised `dtype_traits`; told apart by its name
};

/// Makes T an element: opt-in, by specialisation.
///
/// Everything hvd sends is a `T` with a complete `dtype_traits<T>`. To add a type of your own:
/// @code
/// template <> struct hvd::dtype_traits<my::fp8> : hvd::transport_only<my::fp8> {
///     static constexpr std::string_view name = "fp8_e4m3";
/// };
/// @endcode
/// Such a type can be sent (broadcast, allgather, …) and reduced by callables; built-in operations
/// need `arithmetic` (and `operator+` and the like on the type itself).
template <class T>
struct dtype_traits;

/// Base for users' specialisations of `dtype_traits`: an element that is moved as bytes.
template <class T>
struct transport_only {
    static_assert(std::is_trivially_copyable_v<T>, "hvd: an element must be trivially copyable");
    static constexpr dtype id = dtype::user;
    static constexpr bool arithmetic = false;
    using accumulator = T;
};

/// Base for users' specialisations: an element with `+ * < ==` that hvd's operations may use.
template <class T>
struct arithmetic_element : transport_only<T> {
    static constexpr bool arithmetic = true;
};

namespace detail {

// Id is a template parameter so that the name can be looked up from it in one place.
template <dtype Id, class Accumulator>
struct builtin_element {
    static constexpr dtype id = Id;
    static constexpr bool arithmetic = true;
    using accumulator = Accumulator;
};

constexpr std::string_view dtype_names[] = {
    "int8",    "int16",     "int32",      "int64",   "uint8",    "uint16",
    "uint32",  "uint64",    "bool",       "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "byte",    "user type"};

// Accepts std::complex and every type that is laid out like it. Including <complex> itself costs
// 0.3 s.
template <class T>
concept complex_like = std::is_trivially_copyable_v<T> && requires(const T& z, T& w) {
    typename T::value_type;
    requires std::same_as<typename T::value_type, float> ||
                 std::same_as<typename T::value_type, double>;
    requires sizeof(T) == 2 * sizeof(typename T::value_type);
    { z.real() } -> std::convertible_to<typename T::value_type>;
    { z.imag() } -> std::convertible_to<typename T::value_type>;
    w += z;
    w *= z;
};

template <std::size_t Bytes, bool Signed>
constexpr dtype integer_id() {
    constexpr auto power = Bytes == 1 ? 0 : Bytes == 2 ? 1 : Bytes == 4 ? 2 : 3;
    return static_cast<dtype>(power + (Signed ? 0 : 4));
}

template <class T>
concept plain_integer =
    std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char8_t> &&
    !std::same_as<T, char16_t> && !std::same_as<T, char32_t> && !std::same_as<T, wchar_t> &&
    sizeof(T) <= 8 && std::same_as<T, std::remove_cv_t<T>>;

}  // namespace detail

// Integers are mapped by size and sign. So both `long` and `long long` have an id, whichever of
// them std::int64_t is.
template <detail::plain_integer T>
struct dtype_traits<T>
    : detail::builtin_element<detail::integer_id<sizeof(T), std::is_signed_v<T>>(), T> {};

template <>
struct dtype_traits<bool> : detail::builtin_element<dtype::boolean, bool> {};
template <>
struct dtype_traits<float16> : detail::builtin_element<dtype::float16, float> {};
template <>
struct dtype_traits<bfloat16> : detail::builtin_element<dtype::bfloat16, float> {};
template <>
struct dtype_traits<float> : detail::builtin_element<dtype::float32, float> {};
template <>
struct dtype_traits<double> : detail::builtin_element<dtype::float64, double> {};
template <>
struct dtype_traits<std::byte> : transport_only<std::byte> {
    static constexpr dtype id = dtype::byte;
};

template <detail::complex_like T>
struct dtype_traits<T>
    : detail::builtin_element<sizeof(T) == 8 ? dtype::complex64 : dtype::complex128, T> {};

#if HVD_HAS_BUILTIN_FLOAT16
template <>
struct dtype_traits<_Float16> : detail::builtin_element<dtype::float16, float> {};
#endif
#ifdef __STDCPP_BFLOAT16_T__
template <>
struct dtype_traits<std::bfloat16_t> : detail::builtin_element<dtype::bfloat16, float> {};
#endif

/// T is an element: it has `dtype_traits`.
template <class T>
concept element = requires {
    { dtype_traits<T>::id } -> std::convertible_to<dtype>;
    typename dtype_traits<T>::accumulator;
};

/// The name of T on the wire, as errors and timelines print it.
template <element T>
constexpr std::string_view dtype_name() {
    if constexpr (requires { dtype_traits<T>::name; }) return dtype_traits<T>::name;
    else return detail::dtype_names[std::size_t(dtype_traits<T>::id)];
}

/// The name of an element type, as errors and timelines print it.
constexpr std::string_view dtype_name(dtype id) { return detail::dtype_names[std::size_t(id)]; }

namespace detail {

template <class T>
constexpr bool is_integer_element = element<T> && std::integral<T> && !std::same_as<T, bool>;

template <class T>
constexpr bool is_complex_element = complex_like<T>;

template <class T>
constexpr bool is_float_element = [] {
    if constexpr (!element<T>) return false;
    else return dtype_traits<T>::id >= dtype::float16 && dtype_traits<T>::id <= dtype::float64;
}();

}  // namespace detail
}  // namespace hvd::inline v0
