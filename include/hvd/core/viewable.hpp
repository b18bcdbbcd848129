// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <type_traits>

#include "dtype.hpp"
#include "tensor_view.hpp"

namespace hvd::inline v0 {

/// Makes somebody else's tensor type viewable. `interop/` specialises it, and so may users.
///
/// A specialisation has `static auto view(X&)` (or `const X&`) that returns a `tensor_view`, and
/// `static constexpr bool borrowed`, which is true if the memory outlives a temporary X.
template <class X>
struct view_traits;

namespace detail {

template <class X>
concept has_view_traits = requires(X& x) { view_traits<std::remove_cv_t<X>>::view(x); };

template <class X>
concept is_range = requires(X& x) {
    { std::data(x) } -> std::convertible_to<const volatile void*>;
    { std::size(x) } -> std::convertible_to<std::size_t>;
};

template <class X>
constexpr bool is_tensor_view = false;
template <class T, class S, std::size_t R, class L>
constexpr bool is_tensor_view<tensor_view<T, S, R, L>> = true;

// Views a (nested) C array with its element type and extents.
template <class A, std::size_t... D>
constexpr auto array_view(A& array, std::index_sequence<D...>) {
    using T = std::remove_all_extents_t<A>;
    void* first = const_cast<std::remove_cv_t<T>*>(reinterpret_cast<const T*>(&array));
    return tensor_view<T, host, sizeof...(D)>(static_cast<T*>(first), {std::extent_v<A, D>...});
}

// This is the one place that turns an argument of a user into a view. It returns void where it
// cannot.
template <class X>
constexpr auto to_view(X& x) {
    using U = std::remove_cv_t<X>;
    if constexpr (is_tensor_view<U>) {
        return U(x);
    } else if constexpr (has_view_traits<X>) {
        return view_traits<U>::view(x);
    } else if constexpr (std::is_array_v<X>) {
        if constexpr (element<std::remove_cv_t<std::remove_all_extents_t<X>>>)
            return array_view(x, std::make_index_sequence<std::rank_v<X>>());
    } else if constexpr (element<U>) {
        return tensor_view<X>(&x, {1});
    } else if constexpr (is_range<X>) {
        using T = std::remove_pointer_t<decltype(std::data(x))>;
        if constexpr (element<std::remove_cv_t<T>>)
            return tensor_view<T>(std::data(x), {std::size_t(std::size(x))});
    }
}

template <class X>
using view_of = decltype(to_view(std::declval<std::remove_reference_t<X>&>()));

template <class U>
concept says_whether_borrowed = requires { bool(view_traits<U>::borrowed); };

template <class X>
constexpr bool outlives_its_view() {
    using U = std::remove_cvref_t<X>;
    if constexpr (std::is_lvalue_reference_v<X> || is_tensor_view<U>) return true;
    else if constexpr (says_whether_borrowed<U>) return bool(view_traits<U>::borrowed);
    else return std::ranges::enable_borrowed_range<U>;
}

template <class X>
constexpr bool is_borrowed = outlives_its_view<X>();

}  // namespace detail

/// X can be handed to a collective. It is a `tensor_view`, a contiguous range of elements (spans,
/// vectors, arrays, `std::array`), a (nested) C array as one tensor, an element, or a type with
/// `view_traits`.
template <class X>
concept viewable = detail::is_tensor_view<detail::view_of<X>>;

/// A viewable whose elements a collective may write.
template <class X>
concept writable = viewable<X> && !std::is_const_v<typename detail::view_of<X>::element_type>;

namespace detail {

template <class X>
using element_of = typename view_of<X>::value_type;

template <class X>
constexpr bool on_host = std::is_same_v<typename view_of<X>::space, host>;

}  // namespace detail
}  // namespace hvd::inline v0
