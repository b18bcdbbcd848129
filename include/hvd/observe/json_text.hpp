// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <charconv>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "../core/lean/finite.hpp"

namespace hvd::inline v0::detail {

// Returns the bytes of the character that a text begins with, 0 if they are not UTF-8: overlong
// forms, surrogates and numbers above U+10FFFF are none.
inline std::size_t utf8_bytes(std::string_view text) {
    const auto at = [&](std::size_t i) -> unsigned {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
    };
    const auto follows = [&](std::size_t i) { return (at(i) & 0xC0U) == 0x80U; };
    const unsigned first = at(0);
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4 || !follows(1)) return 0;
    if (first < 0xE0) return 2;
    if (!follows(2)) return 0;
    if (first < 0xF0)
        return (first == 0xE0 && at(1) < 0xA0) || (first == 0xED && at(1) > 0x9F) ? 0 : 3;
    if (!follows(3) || (first == 0xF0 && at(1) < 0x90) || (first == 0xF4 && at(1) > 0x8F)) return 0;
    return 4;
}

// Appends a text as a JSON string, with its quotes. A byte that belongs to no UTF-8 character
// becomes U+FFFD, so that every strict reader takes the result.
template <class Out>
void append_json_text(Out& out, std::string_view text) {
    constexpr const char* digits = "0123456789abcdef";
    out += "\"";
    while (!text.empty()) {
        const char c = text.front();
        const std::size_t bytes = utf8_bytes(text);
        if (c == '"' || c == '\\') {
            const char escaped[] = {'\\', c, 0};
            out += escaped;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            const char escaped[] = {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15], 0};
            out += escaped;
        } else if (bytes == 0) {
            out += "\xEF\xBF\xBD";
        } else {
            out += text.substr(0, bytes);
        }
        text.remove_prefix(bytes > 0 ? bytes : 1);
    }
    out += "\"";
}

// Appends a number. JSON has no infinity and no NaN: they become null.
template <class Out, class N>
    requires std::is_arithmetic_v<N>
void append_json_number(Out& out, N number) {
    if constexpr (std::is_floating_point_v<N>)
        if (!is_finite(double(number))) {
            out += "null";
            return;
        }
    char digits[40];
    out += std::string_view(
        digits, std::size_t(std::to_chars(digits, digits + sizeof digits, number).ptr - digits));
}

}  // namespace hvd::inline v0::detail
