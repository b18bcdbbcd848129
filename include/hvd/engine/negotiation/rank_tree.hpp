// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <algorithm>

#include "rank_set.hpp"

namespace hvd::inline v0::detail {

// A rank that a rank has directly below it in the tree of an engine's ranks.
struct child_rank {
    int rank;
    rank_set below;  // itself and all below it
    rank_set joined{};
    bool bye = false;
};

inline int parent_of(int rank, int fanout) { return rank == 0 ? -1 : (rank - 1) / fanout; }

inline rank_set ranks_below(int top, int size, int fanout) {
    rank_set all;
    for (long first = top, last = top; first < size;) {
        all.add(int(first), int(std::min<long>(last, size - 1)));
        first = first * fanout + 1;
        last = last * fanout + fanout;
    }
    return all;
}

inline std::vector<child_rank> children_of(int rank, int size, int fanout) {
    std::vector<child_rank> children;
    const long first = long(rank) * fanout + 1;
    for (long c = first; c < first + fanout && c < size; ++c)
        children.push_back({int(c), ranks_below(int(c), size, fanout)});
    return children;
}

}  // namespace hvd::inline v0::detail
