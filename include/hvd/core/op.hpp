// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "../standard.hpp"

namespace hvd::inline v0 {

/// The way in which a scaled or averaged integer becomes an integer again.
enum class rounding : std::uint8_t {
    toward_zero,  ///< as Horovod does
    nearest,      ///< halves go away from zero
    down,         ///< toward minus infinity
};

/// The type of `hvd::commutative`.
struct commutative_t {};
/// Says that a callable may be given its arguments in either order.
inline constexpr commutative_t commutative{};

/// The types of the operations. A call takes their values: `hvd::sum` is an `hvd::op::sum`.
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
/// The sum over the ranks.
struct sum : detail::scalable<sum> {
    static constexpr int id = 0;
};
/// The sum divided by the number of ranks; integers need a rounding.
struct average : detail::scalable<average> {
    static constexpr int id = 1;
};
/// The smallest element. A NaN of any rank is the result.
struct min {
    static constexpr int id = 2;
};
/// The largest element. A NaN of any rank is the result.
struct max {
    static constexpr int id = 3;
};
/// The product over the ranks.
struct product {
    static constexpr int id = 4;
};
/// The bits that are set on every rank.
struct bit_and {
    static constexpr int id = 5;
};
/// The bits that are set on some rank.
struct bit_or {
    static constexpr int id = 6;
};
/// The bits that are set on an odd number of ranks.
struct bit_xor {
    static constexpr int id = 7;
};
/// 1 if no rank has a zero, else 0.
struct logical_and {
    static constexpr int id = 8;
};
/// 1 if some rank has no zero, else 0.
struct logical_or {
    static constexpr int id = 9;
};
/// Adaptive sum (arXiv:2006.02924).
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

/// The sum over the ranks.
inline constexpr op::sum sum{};
/// The sum divided by the number of ranks; integers need a rounding.
inline constexpr op::average average{};
/// The smallest element. A NaN of any rank is the result.
inline constexpr op::min min{};
/// The largest element. A NaN of any rank is the result.
inline constexpr op::max max{};
/// The product over the ranks.
inline constexpr op::product product{};
/// The bits that are set on every rank.
inline constexpr op::bit_and bit_and{};
/// The bits that are set on some rank.
inline constexpr op::bit_or bit_or{};
/// The bits that are set on an odd number of ranks.
inline constexpr op::bit_xor bit_xor{};
/// 1 if no rank has a zero, else 0.
inline constexpr op::logical_and logical_and{};
/// 1 if some rank has no zero, else 0.
inline constexpr op::logical_or logical_or{};
/// Adaptive sum of whole vectors, for `allreduce` in place with hvd/train.hpp included.
inline constexpr op::adasum adasum{};

/// Reduces with `f(left, right)`, which must be associative. It is applied in rank order.
///
/// `f` is kept by value for the call, so that captures may differ from call to call. An exception
/// that it throws on one rank is rethrown there and reaches the others as `peer_error`.
template <class F>
constexpr op::custom<std::decay_t<F>, false> custom(F&& f) {
    return {std::forward<F>(f)};
}

/// Reduces with an `f` whose arguments may be exchanged.
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
}  // namespace hvd::inline v0
