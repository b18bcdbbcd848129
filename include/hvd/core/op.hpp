// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace hvd {
inline namespace v0 {

/// The way in which a scaled or averaged integer becomes an integer again.
enum class rounding : std::uint8_t {
    toward_zero,  ///< as Horovod does (feature B4)
    nearest,      ///< halves go away from zero
    down,         ///< toward minus infinity
};

/// States that `f(a, b)` equals `f(b, a)`.
struct commutative_t {};
/// Says that a callable may be given its arguments in either order.
inline constexpr commutative_t commutative{};

namespace op {

/// An operation with a rounding: `hvd::average(hvd::rounding::toward_zero)`.
template <class Op>
struct rounded : Op {
    rounding mode;
};

namespace detail {
template <class Op>
struct scalable {
    constexpr rounded<Op> operator()(rounding mode) const noexcept { return {{}, mode}; }
};
}  // namespace detail

// The numbers travel in headers, where ranks compare them.
struct sum : detail::scalable<sum> {
    static constexpr int id = 0;
};
struct average : detail::scalable<average> {
    static constexpr int id = 1;
};
struct min {
    static constexpr int id = 2;
};
struct max {
    static constexpr int id = 3;
};
struct product {
    static constexpr int id = 4;
};
struct bit_and {
    static constexpr int id = 5;
};
struct bit_or {
    static constexpr int id = 6;
};
struct bit_xor {
    static constexpr int id = 7;
};
struct logical_and {
    static constexpr int id = 8;
};
struct logical_or {
    static constexpr int id = 9;
};
/// Adaptive sum (feature C3, arXiv:2006.02924).
struct adasum {
    static constexpr int id = 10;
};

/// A user's associative callable `T(const T&, const T&)`, captures included.
template <class F, bool Commutative>
struct custom {
    static constexpr int id = 11;
    static constexpr bool is_commutative = Commutative;
    F combine;
};

}  // namespace op

inline constexpr op::sum sum{};
inline constexpr op::average average{};
inline constexpr op::min min{};
inline constexpr op::max max{};
inline constexpr op::product product{};
inline constexpr op::bit_and bit_and{};
inline constexpr op::bit_or bit_or{};
inline constexpr op::bit_xor bit_xor{};
inline constexpr op::logical_and logical_and{};
inline constexpr op::logical_or logical_or{};
inline constexpr op::adasum adasum{};

/// Reduces with `f(left, right)`, which must be associative. It is applied in rank order.
///
/// `f` is kept by value for the call, so that captures may differ from call to call. An exception
/// that it throws on one rank is rethrown there and reaches the others as `peer_error`.
template <class F>
constexpr op::custom<std::decay_t<F>, false> custom(F&& f) {
    return {std::forward<F>(f)};
}

/// The same for an `f` whose arguments may be exchanged.
template <class F>
constexpr op::custom<std::decay_t<F>, true> custom(F&& f, commutative_t) {
    return {std::forward<F>(f)};
}

namespace detail {

template <class Op>
struct plain_op {
    using type = Op;
};
template <class Op>
struct plain_op<op::rounded<Op>> {
    using type = Op;
};

// The operation without its rounding.
template <class Op>
using plain_op_t = typename plain_op<std::remove_cvref_t<Op>>::type;

template <class Op>
constexpr bool is_rounded = !std::is_same_v<plain_op_t<Op>, std::remove_cvref_t<Op>>;

template <class Op>
constexpr bool is_custom = false;
template <class F, bool C>
constexpr bool is_custom<op::custom<F, C>> = true;

template <class Op>
concept operation_tag = requires {
    { plain_op_t<Op>::id } -> std::convertible_to<int>;
};

constexpr const char* op_names[] = {"sum",         "average",    "min",    "max",
                                    "product",     "bit_and",    "bit_or", "bit_xor",
                                    "logical_and", "logical_or", "adasum", "custom"};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
