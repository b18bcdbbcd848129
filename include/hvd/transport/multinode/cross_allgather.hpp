// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "node_crossing.hpp"

namespace hvd::inline v0::detail {

// Every rank has one block, and all ranks get all blocks. A block goes to each other node once, to
// the partner of its rank there, who gives it to the ranks of that node. So the network paths of
// all ranks are used.
template <endpoint Endpoint>
class cross_allgather {
public:
    explicit cross_allgather(node_crossing<Endpoint>& c) : cross_(c) {}

    // blocks[p] is rank p's block, or the memory for it. All ranks know the sizes. The ranks of
    // node `home` have all blocks already. The array stays until the step is over.
    void begin(const block* blocks, int ranks, int home = -1) {
        blocks_ = blocks;
        home_ = home;
        const std::size_t chunk = cross_.tuned().chunk_bytes;
        chunks_ = (longest_of(blocks, ranks) + chunk - 1) / chunk;
        begin_turn(0);
    }

    // In each turn a chunk crosses, while the nodes share the chunk that came before.
    bool go_on() {
        for (;;) {
            while (round_ < cross_.rounds.size())
                if (share(cross_.rounds[round_++])) return true;
            if (turn_ == chunks_) return false;
            if (!std::exchange(awaited_, true)) {
                cross_.await_endpoint();
                return true;
            }
            begin_turn(turn_ + 1);
        }
    }

private:
    bool at_home() const { return cross_.nodes.mine() == home_; }
    block chunk(int rank, std::size_t index) const {
        return chunk_of(blocks_[rank], index, cross_.tuned().chunk_bytes);
    }

    void begin_turn(std::size_t turn) {
        turn_ = turn;
        awaited_ = false;
        round_ = at_home() ? cross_.rounds.size() : 0;
        if (turn == chunks_) return;
        if (!at_home())
            for (const int rank : cross_.nodes.served()) cross_.receive(rank, chunk(rank, turn));
        const int me = cross_.endpoint.rank();
        for (const int node : cross_.nodes.others())
            if (node != home_) cross_.send(cross_.nodes.partner(node), chunk(me, turn));
    }

    // The node's own chunks need no network; those of other nodes came in the turn before.
    bool share(const typename node_crossing<Endpoint>::round& r) {
        const bool own = r.node == cross_.nodes.mine();
        if (own ? turn_ == chunks_ : turn_ == 0) return false;
        const std::size_t index = own ? turn_ : turn_ - 1;
        std::size_t bytes = 0;
        for (int local = 0; local < cross_.nodes.local_size(); ++local) {
            const int rank = cross_.at(r, local);
            const block b = rank < 0 ? block{} : chunk(rank, index);
            cross_.local_receive[std::size_t(local)] = b;
            bytes += b.bytes;
        }
        if (bytes == 0 || cross_.nodes.local_size() == 1) return false;
        const block mine =
            std::exchange(cross_.local_receive[std::size_t(cross_.nodes.local_rank())], {});
        cross_.allgather(mine);
        return true;
    }

    node_crossing<Endpoint>& cross_;
    const block* blocks_ = nullptr;
    int home_ = -1;
    std::size_t chunks_ = 0, turn_ = 0, round_ = 0;
    bool awaited_ = false;
};

}  // namespace hvd::inline v0::detail
