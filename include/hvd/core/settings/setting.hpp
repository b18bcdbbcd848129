// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "../options.hpp"

namespace hvd::inline v0::detail {

enum class setting_kind : std::uint8_t {
    bytes,
    count,
    integer,
    span,
    limit,  // a span, or forever
    flag,
    text,
    integers,
    thresholds
};

// One member of an aggregate of options, as it is written in the environment and in files.
struct setting {
    const char* key;       // in a file: "tuning.chunk_bytes" is `chunk_bytes` in the map `tuning`
    const char* variable;  // in the environment
    const char* replaces;  // Horovod's variable; "" if there is none
    const char* effect;    // a few words, for docs/reference/settings.md
    void* (*member)(void* options);
    setting_kind kind;
    std::int64_t least = 0, most = 0;     // of numbers, bytes, and a span's nanoseconds
    std::int64_t multiple = 1;            // that the value must be
    const char* automatic = "automatic";  // what a value outside the range stands for
    bool is_hidden = false;               // nobody prints the value
    const char* needed = "";              // who needs it, where Horovod has no counterpart
};

// The members of an aggregate of options: a specialisation has `table`. All that reads, writes and
// documents options goes by these tables, so that another aggregate needs no more than its own.
template <class Options>
struct settings_of;

template <class Member>
struct member_traits;
template <class Options, class T>
struct member_traits<T Options::*> {
    using options_type = Options;
    using value_type = T;
};
template <auto... Member>  // the last of them
using innermost =
    typename decltype((std::type_identity<member_traits<decltype(Member)>>(), ...))::type;

// The member of an aggregate, or of an aggregate that is a member of it.
template <auto Outer, auto... Inner>
void* member_of(void* options) {
    auto& o = *static_cast<typename member_traits<decltype(Outer)>::options_type*>(options);
    if constexpr (sizeof...(Inner) == 0) return &(o.*Outer);
    else return member_of<Inner...>(&(o.*Outer));
}

template <class T>
constexpr setting_kind kind_of_member() {
    if constexpr (std::is_same_v<T, bool>) return setting_kind::flag;
    else if constexpr (std::is_same_v<T, int>) return setting_kind::integer;
    else if constexpr (std::is_same_v<T, time_span>) return setting_kind::span;
    else if constexpr (std::is_same_v<T, time_limit>) return setting_kind::limit;
    else if constexpr (std::is_same_v<T, std::string>) return setting_kind::text;
    else if constexpr (std::is_same_v<T, std::vector<int>>) return setting_kind::integers;
    else if constexpr (std::is_same_v<T, unstable_thresholds>) return setting_kind::thresholds;
    else {
        static_assert(std::is_same_v<T, std::size_t> || std::is_same_v<T, std::uint64_t>);
        return setting_kind::count;
    }
}

// The longest time that an option takes: 30 days.
inline constexpr std::int64_t longest_time = std::int64_t(30) * 24 * 3600 * tuning::second;

// An entry of a table without a range.
template <auto... Member>
constexpr setting entry(const char* key, const char* variable, const char* replaces,
                        const char* effect) {
    using value_type = typename innermost<Member...>::value_type;
    setting s{key, variable, replaces, effect, &member_of<Member...>, kind_of_member<value_type>()};
    if (s.kind == setting_kind::span || s.kind == setting_kind::limit) s.most = longest_time;
    if (s.kind == setting_kind::limit) s.least = 1;
    if (s.kind == setting_kind::count) s.most = INT64_MAX;
    if (s.kind == setting_kind::integer || s.kind == setting_kind::integers) s.most = INT32_MAX;
    return s;
}

// Entries with more to them.
constexpr setting in_bytes(setting s, std::int64_t least, std::int64_t most) {
    s.kind = setting_kind::bytes;
    s.least = least;
    s.most = most;
    return s;
}
constexpr setting hidden(setting s) {
    s.is_hidden = true;
    return s;
}
constexpr setting needed(const char* why, setting s) {
    s.needed = why;
    return s;
}
constexpr setting between(std::int64_t least, setting s, std::int64_t most) {
    s.least = least;
    s.most = most;
    return s;
}
constexpr setting unless_given(const char* automatic, setting s) {
    s.automatic = automatic;
    return s;
}
constexpr setting from(std::int64_t least, setting s, const char* automatic) {
    s.least = least;
    s.automatic = automatic;
    return s;
}

}  // namespace hvd::inline v0::detail
