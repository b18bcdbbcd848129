// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "cross_allgather.hpp"

namespace hvd::inline v0::detail {

// The block of one rank goes to all ranks. A small block goes straight to one rank of each node. A
// large block is cut into slices, one for each rank. Every rank gets its slice from the ranks of
// the root's node, and all ranks gather the slices. At most twice the block leaves the root's node,
// however many nodes there are.
template <endpoint Endpoint>
class cross_broadcast {
public:
    explicit cross_broadcast(node_crossing<Endpoint>& c) : cross_(c), allgather_(c) {}

    // `arrived`: one rank of each node has the block already.
    void begin(int root, const block& whole, int ranks, bool arrived) {
        root_ = root;
        whole_ = whole;
        home_ = cross_.nodes.node(root);
        small_ = arrived || whole.bytes <= cross_.tuned().unstable.most_broadcast_whole;
        phase_ = arrived ? 1 : 0;
        dealt_ = 0;
        if (!small_) lay_out(ranks);
    }

    // The rank that shares a small block on this node.
    int giver() const {
        return at_home() ? root_ : cross_.nodes.partner(root_, cross_.nodes.mine());
    }

    bool go_on() { return small_ ? go_on_small() : go_on_large(); }

private:
    int me() const { return cross_.endpoint.rank(); }
    bool at_home() const { return cross_.nodes.mine() == home_; }

    bool go_on_small() {
        if (phase_ == 0) {
            if (me() == root_)
                for (const int node : cross_.nodes.others())
                    cross_.send(cross_.nodes.partner(node), whole_);
            else if (me() == giver()) cross_.receive(root_, whole_);
            if (me() == giver() && !at_home()) cross_.await_endpoint();
        }
        if (phase_ == 1) cross_.broadcast(whole_, cross_.nodes.local(giver()));
        if (phase_ == 2) cross_.await_endpoint();
        return phase_++ < 3;
    }

    bool go_on_large() {
        if (phase_ == 0 && at_home()) {
            ++phase_;
            cross_.broadcast(whole_, cross_.nodes.local(root_));
            return true;
        }
        if (phase_ < 2) {
            phase_ = 1;
            if (deal(dealt_++)) return true;
            allgather_.begin(slices_.data(), int(slices_.size()), home_);
            phase_ = 2;
        }
        return allgather_.go_on();
    }

    // Each rank gets a chunk of its slice.
    bool deal(std::size_t index) {
        const auto chunk = [&](int rank) {
            return chunk_of(slices_[std::size_t(rank)], index,
                            cross_.tuned().unstable.exchange_chunk_bytes);
        };
        bool any = false;
        if (!at_home()) any = cross_.receive(cross_.nodes.partner(home_), chunk(me()));
        else
            for (const int rank : cross_.nodes.served()) any |= cross_.send(rank, chunk(rank));
        cross_.await_endpoint();
        return any;
    }

    // Slices begin where cache lines begin.
    void lay_out(int ranks) {
        if (slices_.empty()) slices_ = table<block>(std::size_t(ranks));
        const std::size_t each = (whole_.bytes / std::size_t(ranks) + tuning::cache_line) /
                                 tuning::cache_line * tuning::cache_line;
        for (int rank = 0; rank < ranks; ++rank)
            slices_[std::size_t(rank)] = chunk_of(whole_, std::size_t(rank), each);
    }

    node_crossing<Endpoint>& cross_;
    cross_allgather<Endpoint> allgather_;
    table<block> slices_;
    block whole_;
    int root_ = 0, home_ = 0, phase_ = 0;
    std::size_t dealt_ = 0;
    bool small_ = true;
};

}  // namespace hvd::inline v0::detail
