// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <vector>

namespace hvd {
inline namespace v0 {
namespace detail {

// A span's own constructor from a range draws the concepts of ranges into every file.
template <class T>
std::span<const T> span_of(const std::vector<T>& v) noexcept {
    return {v.data(), v.size()};
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
