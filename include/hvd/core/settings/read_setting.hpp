// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../units.hpp"
#include "setting.hpp"

namespace hvd::inline v0::detail {

inline slice<const unit> units_of(setting_kind kind) {
    if (kind == setting_kind::bytes) return byte_units;
    if (kind == setting_kind::span) return time_units;
    return no_unit;
}

inline bool is_permitted(const setting& s, std::int64_t value) {
    return value >= s.least && value <= s.most && value % s.multiple == 0;
}

// Reads numbers with commas between them. An empty text is an empty list.
inline bool read_integers(const setting& s, std::string_view text, std::vector<int>& numbers) {
    while (!text.empty()) {
        const std::size_t comma = text.find(',');
        std::int64_t value = 0;
        if (!read_number(text.substr(0, comma), no_unit, value) || !is_permitted(s, value))
            return false;
        numbers.push_back(int(value));
        if (comma == std::string_view::npos) return true;
        text.remove_prefix(comma + 1);
        if (text.empty()) return false;  // nothing behind the comma
    }
    return true;
}

// Reads a value into its member. It returns false, and leaves the member as it was, for a text that
// is not what `permitted` says.
[[gnu::cold]] inline bool read_setting(const setting& s, std::string_view text, void* options) {
    void* const member = s.member(options);
    if (s.kind == setting_kind::text) {
        if (text.find('\0') != std::string_view::npos) return false;
        *static_cast<std::string*>(member) = text;
        return true;
    }
    if (s.kind == setting_kind::integers) {
        std::vector<int> numbers;
        if (!read_integers(s, text, numbers)) return false;
        *static_cast<std::vector<int>*>(member) = std::move(numbers);
        return true;
    }
    if (s.kind == setting_kind::flag) {
        const bool yes = text == "1" || text == "true";
        if (!yes && text != "0" && text != "false") return false;
        *static_cast<bool*>(member) = yes;
        return true;
    }
    std::int64_t value = 0;
    const bool is_number = s.kind == setting_kind::span
                               ? read_time(text, s.bare_seconds, value)
                               : read_number(text, units_of(s.kind), value);
    if (!is_number || !is_permitted(s, value)) return false;
    if (s.kind == setting_kind::span)
        *static_cast<time_span*>(member) = time_span::of_nanoseconds(value);
    else if (s.kind == setting_kind::integer) *static_cast<int*>(member) = int(value);
    else *static_cast<std::size_t*>(member) = std::size_t(value);
    return true;
}

// Writes a number with the largest unit that divides it, as read_number reads it.
[[gnu::cold]] inline std::string number_text(const setting& s, std::int64_t value) {
    if (value < s.least || value > s.most) return s.automatic;
    unit best = no_unit[0];
    if (s.kind == setting_kind::span) best = {"ns", 1};
    for (const unit& u : units_of(s.kind))
        if (!u.name.empty() && value % u.size == 0 && value != 0 && u.size >= best.size) best = u;
    return std::string(std::string_view(text(value / best.size, value == 0 ? "" : best.name)));
}

// Writes the value of a member, as it is read.
[[gnu::cold]] inline std::string value_text(const setting& s, const void* options) {
    const void* const member = s.member(const_cast<void*>(options));
    switch (s.kind) {
        case setting_kind::text: {
            const std::string& value = *static_cast<const std::string*>(member);
            return s.is_hidden && !value.empty() ? "(not shown)" : value;
        }
        case setting_kind::flag: return *static_cast<const bool*>(member) ? "true" : "false";
        case setting_kind::span:
            return number_text(s, static_cast<const time_span*>(member)->nanoseconds);
        case setting_kind::integer: return number_text(s, *static_cast<const int*>(member));
        case setting_kind::integers: {
            std::string list;
            for (const int number : *static_cast<const std::vector<int>*>(member)) {
                if (!list.empty()) list += ',';
                list += text(number);
            }
            return list;
        }
        case setting_kind::bytes:
        case setting_kind::count: break;
    }
    return number_text(s, std::int64_t(*static_cast<const std::size_t*>(member)));
}

// Says what a setting takes: the end of an error, and a column of docs/tuning.md.
[[gnu::cold]] inline std::string permitted(const setting& s) {
    const auto range = [&] {
        std::string multiple;
        if (s.multiple > 1) multiple = ", a multiple of " + number_text(s, s.multiple);
        if (s.most == INT64_MAX) return " from " + number_text(s, s.least) + multiple;
        return " from " + number_text(s, s.least) + " to " + number_text(s, s.most) + multiple;
    };
    switch (s.kind) {
        case setting_kind::text: return "a text";
        case setting_kind::flag: return "true, false, 1 or 0";
        case setting_kind::span:
            return "a time" + range() +
                   (s.bare_seconds ? " (ns, us, ms, s, min; s if none)" : " (ns, us, ms, s, min)");
        case setting_kind::bytes: return "bytes" + range() + " (K, KiB, M, MiB, G, GiB)";
        case setting_kind::integers: return "numbers from 0 with commas between them";
        case setting_kind::count:
        case setting_kind::integer: break;
    }
    return "a number" + range();
}

}  // namespace hvd::inline v0::detail
