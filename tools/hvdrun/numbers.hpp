// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

namespace hvdrun {

// Reads the digits of a decimal number, and nothing else: 010 is ten, and 0x10, +1, inf and " 1"
// are no numbers.
template <class Number>
bool read_decimal(std::string_view text, Number& number) {
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, number);
    if (error != std::errc() || end != last) return false;
    if constexpr (std::is_floating_point_v<Number>) return std::isfinite(number);
    else return true;
}

// A bound in an error: 4096 or 0.001.
inline std::string decimal(double number) {
    char text[32];
    std::snprintf(text, sizeof text, "%.10g", number);
    return text;
}

}  // namespace hvdrun
