// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <charconv>
#include <cstdint>
#include <string_view>

#include "lean/slice.hpp"
#include "options.hpp"

namespace hvd::inline v0::detail {

// A unit, and the bytes or nanoseconds that it stands for.
struct unit {
    std::string_view name;
    std::int64_t size;
};
inline constexpr unit no_unit[] = {{"", 1}};
inline constexpr unit byte_units[] = {{"", 1},         {"K", 1 << 10},   {"M", 1 << 20},
                                      {"G", 1 << 30},  {"KiB", 1 << 10}, {"MiB", 1 << 20},
                                      {"GiB", 1 << 30}};
// A number alone is seconds, as in Horovod's variables and in PyTorch.
inline constexpr unit time_units[] = {{"", 1'000'000'000},  {"ns", 1},
                                      {"us", 1'000},        {"ms", 1'000'000},
                                      {"s", 1'000'000'000}, {"min", 60'000'000'000}};

// Reads a whole number with one of the units behind it. Nothing else may stand there: no space and
// no plus. The locale does not matter. Returns false for anything else, and for a number too large.
inline bool read_number(std::string_view text, slice<const unit> units, std::int64_t& value) {
    const char* const end = text.data() + text.size();
    std::int64_t number = 0;
    const auto [behind, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc()) return false;
    const std::string_view name(behind, std::size_t(end - behind));
    for (const unit& u : units)
        if (u.name == name) return !__builtin_mul_overflow(number, u.size, &value);
    return false;
}

// Reads a time that is more than 0, or "forever".
inline bool read_limit(std::string_view text, time_limit& limit) {
    std::int64_t nanoseconds = 0;
    if (text == "forever") limit = forever;
    else if (read_number(text, time_units, nanoseconds) && nanoseconds > 0)
        limit = time_span::of_nanoseconds(nanoseconds);
    else return false;
    return true;
}

}  // namespace hvd::inline v0::detail
