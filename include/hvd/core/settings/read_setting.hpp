// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../units.hpp"
#include "spelling.hpp"
#include "threshold_settings.hpp"

namespace hvd::inline v0::detail {

inline slice<const unit> units_of(setting_kind kind) {
    if (kind == setting_kind::bytes) return byte_units;
    if (kind == setting_kind::span || kind == setting_kind::limit) return time_units;
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

[[gnu::cold]] inline bool read_setting(const setting& s, std::string_view text, void* options);
[[gnu::cold]] inline std::string value_text(const setting& s, const void* options);
[[gnu::cold]] inline std::string permitted(const setting& s);

inline constexpr const char* list_of_thresholds = "name=bytes with commas between them";

inline const setting* find_threshold(std::string_view name) {
    for (const setting& s : settings_of<unstable_thresholds>::table)
        if (name == s.key) return &s;
    return nullptr;
}

inline std::string unknown_threshold(std::string_view name) {
    best_spelling meant(name);
    for (const setting& s : settings_of<unstable_thresholds>::table) meant.offer(s.key);
    return std::string(std::string_view(text("'", name, "' is no threshold", meant.question())));
}

// Reads "name=bytes,name=bytes". Thresholds that the text does not name have their defaults. It
// returns what is wrong with the text, or nothing.
[[gnu::cold]] inline std::string read_thresholds(std::string_view list,
                                                 unstable_thresholds& thresholds) {
    unstable_thresholds read;
    std::vector<const setting*> seen;
    while (!list.empty()) {
        const std::string_view item = list.substr(0, list.find(','));
        const std::string_view name = item.substr(0, item.find('='));
        list.remove_prefix(item.size());
        if (name.size() == item.size() || list == ",")
            return std::string("it takes ") + list_of_thresholds;
        if (!list.empty()) list.remove_prefix(1);
        const setting* const s = find_threshold(name);
        if (s == nullptr) return unknown_threshold(name);
        for (const setting* const earlier : seen)
            if (earlier == s) return std::string(name) + " stands twice";
        seen.push_back(s);
        if (!read_setting(*s, item.substr(name.size() + 1), &read))
            return std::string(name) + " takes " + permitted(*s);
    }
    thresholds = read;
    return {};
}

// Writes the thresholds that are not their defaults, as they are read.
[[gnu::cold]] inline std::string thresholds_text(const unstable_thresholds& thresholds) {
    const unstable_thresholds defaults;
    std::string list;
    for (const setting& s : settings_of<unstable_thresholds>::table) {
        const std::string value = value_text(s, &thresholds);
        if (value == value_text(s, &defaults)) continue;
        if (!list.empty()) list += ',';
        list += s.key + ("=" + value);
    }
    return list;
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
    if (s.kind == setting_kind::thresholds)
        return read_thresholds(text, *static_cast<unstable_thresholds*>(member)).empty();
    if (s.kind == setting_kind::flag) {
        const bool yes = text == "1" || text == "true";
        if (!yes && text != "0" && text != "false") return false;
        *static_cast<bool*>(member) = yes;
        return true;
    }
    if (s.kind == setting_kind::limit) {
        time_limit limit;
        if (!read_limit(text, limit) || limit.time().nanoseconds > s.most) return false;
        *static_cast<time_limit*>(member) = limit;
        return true;
    }
    std::int64_t value = 0;
    if (!read_number(text, units_of(s.kind), value) || !is_permitted(s, value)) return false;
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
    if (units_of(s.kind).data() == time_units) best = {"ns", 1};
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
        case setting_kind::limit: {
            const time_limit limit = *static_cast<const time_limit*>(member);
            if (!limit.is_given()) return s.automatic;
            return limit.is_time() ? number_text(s, limit.time().nanoseconds) : "forever";
        }
        case setting_kind::integer: return number_text(s, *static_cast<const int*>(member));
        case setting_kind::integers: {
            std::string list;
            for (const int number : *static_cast<const std::vector<int>*>(member)) {
                if (!list.empty()) list += ',';
                list += text(number);
            }
            return list;
        }
        case setting_kind::thresholds:
            return thresholds_text(*static_cast<const unstable_thresholds*>(member));
        case setting_kind::bytes:
        case setting_kind::count: break;
    }
    return number_text(s, std::int64_t(*static_cast<const std::size_t*>(member)));
}

// Says what a setting takes: a column of docs/reference/settings.md.
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
        case setting_kind::span: return "a time" + range() + " (ns, us, ms, s, min; s if none)";
        case setting_kind::limit:
            return "a time of at most " + number_text(s, s.most) +
                   " (ns, us, ms, s, min; s if none), or forever";
        case setting_kind::bytes: return "bytes" + range() + " (K, KiB, M, MiB, G, GiB)";
        case setting_kind::integers: return "numbers from 0 with commas between them";
        case setting_kind::thresholds: return list_of_thresholds;
        case setting_kind::count:
        case setting_kind::integer: break;
    }
    return "a number" + range();
}

// Says what is wrong with a value, as the end of an error.
[[gnu::cold]] inline std::string complaint(const setting& s, std::string_view value) {
    unstable_thresholds none;
    if (s.kind == setting_kind::thresholds) return read_thresholds(value, none);
    return "it takes " + permitted(s);
}

}  // namespace hvd::inline v0::detail
