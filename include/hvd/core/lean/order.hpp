// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "slice.hpp"

namespace hvd::inline v0::detail {

// Returns the indices of the keys in the order of the keys; equal ones keep their order. It merges.
// std::sort is compiled anew for each kind of element and comparison.
[[gnu::cold]] inline std::vector<std::size_t> ascending(slice<const std::int64_t> keys) {
    const std::size_t n = keys.size();
    std::vector<std::size_t> from(n), to(n);
    for (std::size_t i = 0; i < n; ++i) from[i] = i;
    for (std::size_t run = 1; run < n; run *= 2) {
        std::size_t a = 0, b = 0, end_a = 0, end_b = 0;  // the two runs that are merged
        for (std::size_t& next : to) {
            if (a == end_a && b == end_b) {
                a = end_b;
                end_a = b = a + run < n ? a + run : n;
                end_b = b + run < n ? b + run : n;
            }
            next =
                b == end_b || (a < end_a && keys[from[a]] <= keys[from[b]]) ? from[a++] : from[b++];
        }
        from.swap(to);
    }
    return from;
}

}  // namespace hvd::inline v0::detail
