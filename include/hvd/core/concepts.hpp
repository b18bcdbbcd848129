// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "dtype.hpp"
#include "op.hpp"
#include "viewable.hpp"

namespace hvd::inline v0 {

/// Stands for "any backend" in `transportable` and `reducible`.
struct any_backend {};

namespace detail {

// The backend's own narrowing, if it declares one. These are functions because nvcc takes no
// lambdas in concepts.
template <class T, class Backend>
constexpr bool moved_by() {
    if constexpr (requires { Backend::template moves<T>; }) return bool(Backend::template moves<T>);
    else return true;
}

template <class T, class Op, class Backend>
constexpr bool reduced_by() {
    if constexpr (requires { Backend::template reduces<T, Op>; })
        return bool(Backend::template reduces<T, Op>);
    else return true;
}

}  // namespace detail

/// Elements of type T may be moved over the backend.
///
/// A backend narrows it with `template <class T> static constexpr bool moves`.
template <class T, class Backend = any_backend>
concept transportable =
    element<T> && std::is_trivially_copyable_v<T> && detail::moved_by<T, Backend>();

namespace detail {

template <class T, class Op>
constexpr bool op_fits_element() {
    using plain = plain_op_t<Op>;
    constexpr bool integer = is_integer_element<T>;
    constexpr bool boolean = std::same_as<T, bool>;
    constexpr bool number = dtype_traits<T>::arithmetic && !boolean;
    if constexpr (is_custom<plain>)
        return std::is_invocable_r_v<T, const decltype(plain::combine)&, const T&, const T&>;
    else if constexpr (std::same_as<plain, op::average>)
        return number && (!integer || is_rounded<Op>) &&
               requires(const typename dtype_traits<T>::accumulator& a) {
                   a / static_cast<typename dtype_traits<T>::accumulator>(1);
               };
    else if constexpr (std::same_as<plain, op::sum> || std::same_as<plain, op::product>)
        return number;
    else if constexpr (std::same_as<plain, op::min> || std::same_as<plain, op::max>)
        return dtype_traits<T>::arithmetic && !is_complex_element<T>;
    else if constexpr (std::same_as<plain, op::adasum>) return false;
    else if constexpr (std::same_as<plain, op::logical_and> || std::same_as<plain, op::logical_or>)
        return integer || boolean;
    else return integer || boolean || std::same_as<T, std::byte>;
}

// A container of bool whose references are not bool&, as std::vector<bool> is.
template <class X>
concept packed_bools = requires(X& x) {
    typename X::value_type;
    requires std::same_as<typename X::value_type, bool>;
    requires !std::same_as<typename X::reference, bool&>;
    typename X::const_reference;
    requires std::same_as<typename X::const_reference, bool>;
};

}  // namespace detail

/// Tensors of T can be reduced with Op over the backend.
///
/// `average` of integers needs a rounding. Complex numbers have no order. `bit_…` and `logical_…`
/// want integers or bool. A backend narrows it with `template <class T, class Op> static constexpr
/// bool reduces`.
template <class T, class Op, class Backend = any_backend>
concept reducible = transportable<T, Backend> && detail::operation_tag<Op> &&
                    detail::op_fits_element<T, std::remove_cvref_t<Op>>() &&
                    detail::reduced_by<T, std::remove_cvref_t<Op>, Backend>();

}  // namespace hvd::inline v0
