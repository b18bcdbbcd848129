// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/error.hpp"
#include "../core/lean/text.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The one place where this floor makes its refusals.
template <class... Parts>
[[gnu::cold, noreturn]] void refuse(int rank, const Parts&... parts) {
    throw usage_error(rank, text("hvd: rank ", rank, ": ", parts...));
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
