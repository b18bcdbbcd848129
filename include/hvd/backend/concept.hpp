// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <type_traits>

#include "../core/memory.hpp"
#include "../core/op.hpp"
#include "../transport/endpoint.hpp"

namespace hvd::inline v0 {

/// A backend with one call of its library for each call, without checks, and with its own order.
template <class Backend>
struct direct;

/// A backend that moves tensors of the host: an empty type whose `endpoint_type` carries messages
/// between the ranks, or shares all memory with them. See docs/adding_a_backend.md.
template <class B>
concept host_backend = std::is_empty_v<B> && (endpoint<typename B::endpoint_type> ||
                                              shared_endpoint<typename B::endpoint_type>);

/// A backend that moves tensors of a GPU: an empty type whose `space_type` is `hvd::device`, which
/// says by `reduces<T, Op>` what it reduces, and by `session_type` what one rank of a communicator
/// is. The session's base class is internal.
template <class B>
concept device_backend =
    std::is_empty_v<B> && std::is_same_v<typename B::space_type, device> && requires {
        typename B::session_type;
        { B::template reduces<float, op::sum> } -> std::convertible_to<bool>;
    };

namespace detail {

// Values instead of concepts: a compiler explains at length why a concept does not hold, but not
// why a value is false. A type that is only declared is no backend.
template <class B>
constexpr bool is_host_backend = [] {
    if constexpr (requires { sizeof(B); }) return host_backend<B>;
    else return false;
}();

// True for a backend whose communicators take options of its own, after those of all.
template <class B>
constexpr bool has_own_options = requires { typename B::own_options; };

// The own options of the first backend that has some.
template <class... Backends>
struct own_options_among {};
template <class First, class... Others>
struct own_options_among<First, Others...> : own_options_among<Others...> {};
template <class First, class... Others>
    requires has_own_options<First>
struct own_options_among<First, Others...> {
    using own_options = typename First::own_options;
};

}  // namespace detail

/// A backend: the template argument of a communicator. See docs/adding_a_backend.md.
template <class B>
concept backend = host_backend<B> || device_backend<B>;

}  // namespace hvd::inline v0
