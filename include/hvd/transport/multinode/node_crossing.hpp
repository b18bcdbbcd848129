// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../chunks.hpp"
#include "../endpoint.hpp"
#include "../node_map.hpp"
#include "../shm/shm_transport.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What the steps of a collective that crosses nodes are made of: the memory of this rank's node,
// the endpoint to the ranks of the others, and which of the two is waited for. A step begins
// something, and is called again when that is over.
//
// Messages go on while the ranks of a node are busy with each other: a step awaits the endpoint
// only where it needs what comes, or the memory that goes.
template <endpoint Endpoint>
struct node_crossing {
    // Ranks of one node that have something in hand at the same time, from its number `first` on:
    // as many as this rank's node has.
    struct round {
        int node, first;
    };

    Endpoint& endpoint;
    const node_map nodes;
    shm_transport memory;
    transport& inner =
        memory;  // called as any transport, lest every step has a copy of the whole of it
    std::vector<round> rounds;               // those of the other nodes, then its own
    table<block> local_send, local_receive;  // by local rank: of the in-node step

    [[gnu::cold]] node_crossing(Endpoint& l, const shm_region& region)
        : endpoint(l),
          nodes(l),
          memory(region, nodes.local_rank()),
          local_send(std::size_t(nodes.local_size())),
          local_receive(std::size_t(nodes.local_size())) {
        for (const int node : nodes.others())
            for (int first = 0; first < int(nodes.ranks(node).size()); first += nodes.local_size())
                rounds.push_back({node, first});
        rounds.push_back({nodes.mine(), 0});
    }

    // The rank that local rank `local` has in hand in a round; -1: none.
    int at(const round& r, int local) const {
        const auto ranks = nodes.ranks(r.node);
        const std::size_t i = std::size_t(r.first + local);
        return i < ranks.size() ? ranks[i] : -1;
    }

    // Whether there is anything to send, or to receive.
    [[gnu::noinline]] bool send(int peer, const block& b) {
        if (b.bytes == 0) return false;
        endpoint.send(peer, b.data, b.bytes);
        return under_way_ = true;
    }
    [[gnu::noinline]] bool receive(int peer, const block& b) {
        if (b.bytes == 0) return false;
        endpoint.recv(peer, b.data, b.bytes);
        return under_way_ = true;
    }
    void await_endpoint() { awaits_endpoint_ = true; }

    void enter(const call_header& mine) {
        inner.enter(mine);
        in_node_ = true;
    }
    // local_send and local_receive, which stay until the step is over.
    void exchange() {
        inner.exchange(local_send.data(), local_receive.data());
        in_node_ = true;
    }
    void combine(const reduction& job) {
        inner.combine(local_send.data(), job);
        in_node_ = true;
    }
    // One rank of this node gives the others `whole`.
    void share(int local_rank, const block& whole) {
        const bool gives = local_rank == nodes.local_rank();
        for (block& b : local_send) b = gives ? whole : block{};
        for (block& b : local_receive) b = {};
        if (gives) local_send[std::size_t(local_rank)] = {};
        else local_receive[std::size_t(local_rank)] = whole;
        exchange();
    }

    bool in_node() const { return in_node_; }

    [[gnu::noinline]] bool ready() {
        if (under_way_ && endpoint.poll()) under_way_ = false;
        return !(awaits_endpoint_ && under_way_) && !(in_node_ && !inner.ready());
    }

    // What was waited for is there; true while the in-node step has further rounds.
    bool next() {
        awaits_endpoint_ = false;
        if (in_node_ && inner.next()) return true;
        in_node_ = false;
        return false;
    }

private:
    bool under_way_ = false, awaits_endpoint_ = false, in_node_ = false;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
