// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../protocol/call_header.hpp"

namespace hvd::inline v0::detail {

// Returns the name of a type as the compiler spells it.
template <class T>
constexpr auto spelled() {
    const std::string_view whole = __PRETTY_FUNCTION__;  // … spelled() [with T = X]
    const std::size_t begin = whole.find("T = ") + 4;
    return whole.substr(begin, whole.size() - begin - 1);
}

template <class T>
constexpr bool is_vector = false;
template <class T>
constexpr bool is_vector<std::vector<T>> = true;

// Matches std::string without its header.
template <class T>
concept string_like = !std::is_trivially_copyable_v<T> && requires {
    typename T::traits_type;
    requires std::same_as<typename T::value_type, char>;
} && std::constructible_from<T, const char*, std::size_t>;

// Returns the name that ranks compare when they exchange objects. For types that hvd knows it is
// the same on all compilers.
template <class T>
message object_name() {
    if constexpr (element<T>) return dtype_name<T>();
    else if constexpr (string_like<T>) return "string";
    else if constexpr (is_vector<T>)
        return text("vector of ", object_name<typename T::value_type>());
    else return spelled<T>();
}

// Stores a long name as its beginning and a hash.
[[gnu::cold]] inline void store_object_name(call_header& entry, std::string_view name) {
    constexpr std::size_t digits = 8;
    constexpr std::size_t front = sizeof entry.type - digits - 2;
    if (name.size() < sizeof entry.type) store(entry.type, name);
    else
        store(entry.type, text(name.substr(0, front), "#", hash().add(name).value() % 100'000'000));
}

}  // namespace hvd::inline v0::detail
