// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace hvd {
inline namespace v0 {
namespace detail {

// Numbers through to_chars: what hvd writes does not depend on the locale.
inline void append(std::string& text, std::string_view part) { text += part; }

template <class N>
    requires std::integral<N> || std::floating_point<N>
void append(std::string& text, N number) {
    char digits[32];
    text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

template <class... Parts>
std::string text(const Parts&... parts) {
    std::string result;
    (append(result, parts), ...);
    return result;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
