// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "../standard.hpp"

namespace hvd::inline v0::detail {

// FNV-1a, of 64 bits.
inline constexpr std::uint64_t empty_fingerprint = 0xcbf29ce484222325u;

constexpr void mix_byte(std::uint64_t& fingerprint, std::uint8_t byte) {
    fingerprint = (fingerprint ^ byte) * 0x100000001b3u;
}

constexpr void mix(std::uint64_t& fingerprint, std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8)
        mix_byte(fingerprint, std::uint8_t(number >> shift));
}

constexpr void mix(std::uint64_t& fingerprint, std::string_view text) {
    for (const char c : text) mix_byte(fingerprint, std::uint8_t(c));
    mix(fingerprint, std::uint64_t(text.size()));
}

// A word of a type's name. g++ writes `auto:45` for a parameter of a generic lambda, and counts all
// that the program has had before, also in headers: the number does not count.
constexpr void mix_word(std::uint64_t& fingerprint, std::string_view word) {
    constexpr std::string_view counted = "auto:";
    for (std::size_t at; (at = word.find(counted)) != word.npos;) {
        mix(fingerprint, word.substr(0, at + counted.size()));
        word.remove_prefix(at + counted.size());
        word.remove_prefix(std::min(word.find_first_not_of("0123456789"), word.size()));
    }
    mix(fingerprint, word);
}

// The name of a type. Some compilers write the path of the header into that of a lambda, and two
// programs may have found one header by different paths: folders do not count.
constexpr void mix_type_name(std::uint64_t& fingerprint, std::string_view name) {
    while (!name.empty()) {
        const std::size_t end = name.find(' ');
        const std::string_view word = name.substr(0, end);
        mix_word(fingerprint, word.substr(word.rfind('/') + 1));  // the whole if there is none
        name.remove_prefix(end == name.npos ? name.size() : end + 1);
    }
}

// The name of a type, as the compiler writes it. Different compilers write different ones.
template <class T>
constexpr void mix_type(std::uint64_t& fingerprint) {
    mix_type_name(fingerprint, __PRETTY_FUNCTION__);
}

}  // namespace hvd::inline v0::detail
