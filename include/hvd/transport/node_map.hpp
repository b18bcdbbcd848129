// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <vector>

#include "../core/lean/slice.hpp"
#include "../core/lean/table.hpp"

namespace hvd::inline v0::detail {

// An endpoint that does not tell who shares a node has each rank on its own node.
template <class Endpoint>
int node_of(const Endpoint& endpoint, int rank) {
    if constexpr (requires {
                      { endpoint.node_of(rank) } -> std::convertible_to<int>;
                  })
        return endpoint.node_of(rank);
    else return rank;
}

// Maps ranks to nodes, as seen by one rank. Nodes are counted in the order of their lowest ranks.
// The ranks of a node keep their order.
class node_map {
public:
    template <class Endpoint>
    [[gnu::cold]] explicit node_map(const Endpoint& endpoint)
        : me_(endpoint.rank()), places_(std::size_t(endpoint.size())), ranks_(places_.size()) {
        const int size = endpoint.size();
        std::vector<int> known, sizes(std::size_t(size), 0);
        for (int rank = 0; rank < size; ++rank) {
            const int name = node_of(endpoint, rank);
            std::size_t n = 0;
            while (n < known.size() && known[n] != name) ++n;
            if (n == known.size()) known.push_back(name);
            consecutive_ = consecutive_ && n + 1 == known.size();
            places_[std::size_t(rank)] = {int(n), sizes[n]++};
        }
        begins_ = std::vector<int>(known.size() + 1);
        for (std::size_t n = 0; n < known.size(); ++n) begins_[n + 1] = begins_[n] + sizes[n];
        for (int rank = 0; rank < size; ++rank)
            ranks_[std::size_t(begins_[std::size_t(node(rank))] + local(rank))] = rank;
        for (int step = 1; step < count(); ++step) {
            const int node = (mine() + step) % count();
            others_.push_back(node);
            for (const int rank : ranks(node))
                if (partner(rank, mine()) == me_) served_.push_back(rank);
        }
    }

    int count() const { return int(begins_.size()) - 1; }
    int mine() const { return node(me_); }
    int local_rank() const { return local(me_); }
    int local_size() const { return int(ranks(mine()).size()); }
    int node(int rank) const { return places_[std::size_t(rank)].node; }
    int local(int rank) const { return places_[std::size_t(rank)].local; }
    slice<const int> ranks(int node) const {
        const int* const begin = &begins_[std::size_t(node)];
        return {ranks_.data() + begin[0], std::size_t(begin[1] - begin[0])};
    }
    // True if the ranks of every node follow each other.
    bool consecutive() const { return consecutive_; }

    // Returns the rank of `node` that works with `rank` of another node. Every rank has one on each
    // node, and the ranks of a node share the work evenly, whatever the sizes of the nodes.
    int partner(int rank, int node) const {
        const auto there = ranks(node);
        return there[std::size_t(local(rank)) % there.size()];
    }
    int partner(int node) const { return partner(me_, node); }
    // The ranks of other nodes that this rank works with.
    slice<const int> served() const { return served_; }
    // The other nodes. Each rank begins with the node after its own, so that not all begin with the
    // same.
    slice<const int> others() const { return others_; }

private:
    struct place {
        int node, local;
    };

    int me_;
    bool consecutive_ = true;
    table<place> places_;      // by rank
    std::vector<int> ranks_;   // node by node
    std::vector<int> begins_;  // the begin of each node in them, and the end
    std::vector<int> others_, served_;
};

}  // namespace hvd::inline v0::detail
