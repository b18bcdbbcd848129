// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <type_traits>

#include "../transport/endpoint.hpp"

namespace hvd {
inline namespace v0 {

/// A backend with one call of its library for each call, without checks, and with its own order.
template <class Backend>
struct direct;

/// A backend: an empty type whose endpoint moves bytes. See docs/adding_a_backend.md.
template <class B>
concept backend = std::is_empty_v<B> && (endpoint<typename B::endpoint_type> ||
                                         shared_endpoint<typename B::endpoint_type>);

}  // namespace v0
}  // namespace hvd
