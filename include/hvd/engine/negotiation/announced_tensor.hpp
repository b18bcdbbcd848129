// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <optional>

#include "coordinator.hpp"
#include "rank_tree.hpp"

namespace hvd::inline v0::detail {

// A tensor that some of the ranks below a rank have submitted, as far as the rank knows. It is kept
// until the root has decided.
struct announced_tensor {
    bool mine = false;             // this rank has submitted it
    bool own_is_numbered = false;  // as the tensor that its number stands for
    bool passed_on = false;
    int contributors = 0;
    std::optional<std::uint32_t> number;  // by which it was said to be ready
    std::vector<bool> children;           // that have said that it is ready below them
    std::vector<std::size_t> by_number;   // children that said so by the number
    std::vector<signature_group> groups;  // the ranks that said it otherwise

    static bool alike(const signature& a, const signature& b) {
        return a.difference(b) == field::none && a.call.refused == b.call.refused &&
               (!a.call.refused || std::strcmp(a.call.text, b.call.text) == 0);
    }

    // Signatures that differ in nothing that ranks compare are one group, that of its lowest rank.
    void add_group(const signature& s, const rank_set& ranks) {
        for (signature_group& g : groups)
            if (alike(g.signature, s)) {
                const std::int32_t priority = std::max(g.signature.priority, s.priority);
                if (ranks.ranges().front() < g.ranks.ranges().front()) g.signature = s;
                g.signature.priority = priority;
                g.ranks.add(ranks);
                return;
            }
        groups.push_back({s, ranks});
    }

    bool is_complete(bool has_joined, const std::vector<child_rank>& below) const {
        if (!mine && !has_joined) return false;
        for (std::size_t i = 0; i < below.size(); ++i)
            if (!children[i] && below[i].joined.size() != below[i].below.size()) return false;
        return contributors > 0;
    }

    // Says in full what was said by a number.
    void expand(const signature& known, int rank, const std::vector<child_rank>& below) {
        for (const std::size_t place : std::exchange(by_number, {})) {
            rank_set ranks = below[place].below;
            ranks.remove(below[place].joined);
            if (!ranks.empty()) add_group(known, ranks);
        }
        if (std::exchange(own_is_numbered, false)) add_group(known, rank_set(rank, rank));
    }
    bool was_said_by_number() const { return !by_number.empty() || own_is_numbered; }
};

}  // namespace hvd::inline v0::detail
