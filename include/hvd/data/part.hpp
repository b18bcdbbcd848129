// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>

#include "../protocol/agreement.hpp"

namespace hvd::inline v0 {

/// A rank's part of the samples, for code without a communicator:
/// `hvd::part{.rank = 1, .size = 4}`.
struct part {
    int rank = 0;
    int size = 1;
};

/// A communicator, or another type with the rank and the number of ranks.
template <class C>
concept has_ranks = requires(const C& c) {
    { c.rank() } -> std::same_as<int>;
    { c.size() } -> std::same_as<int>;
};

namespace detail {

inline part checked(part p) {
    if (p.size < 1 || p.rank < 0 || p.rank >= p.size)
        refuse(p.rank, "the part of rank ", p.rank, " of ", p.size,
               ", and a rank is at least 0 and below the number of ranks");
    return p;
}

}  // namespace detail
}  // namespace hvd::inline v0
