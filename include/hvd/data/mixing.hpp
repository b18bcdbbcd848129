// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include "../standard.hpp"

namespace hvd::inline v0::detail {

// The stream of splitmix64 (Steele, Lea and Flood 2014), whose numbers can be computed in any
// order.
class mixed_stream {
public:
    constexpr explicit mixed_stream(std::uint64_t key) : key_(key) {}

    constexpr std::uint64_t operator[](std::uint64_t i) const {
        std::uint64_t z = key_ + (i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

private:
    std::uint64_t key_;
};

// A key for several numbers, of which each other list of them has another.
template <class... Numbers>
constexpr std::uint64_t mixed_key(Numbers... numbers) {
    std::uint64_t key = 0x632be59bd9b4e019u;
    ((key = mixed_stream(key)[numbers]), ...);
    return key;
}

}  // namespace hvd::inline v0::detail
