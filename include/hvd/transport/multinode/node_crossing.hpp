// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../chunks.hpp"
#include "../endpoint.hpp"
#include "../message_memory.hpp"
#include "../node_map.hpp"
#include "../packets.hpp"
#include "../shm/shm_transport.hpp"

namespace hvd::inline v0::detail {

// The two parts of a step that crosses nodes: the memory of this rank's node, and the endpoint to
// the ranks of the other nodes. It knows which of the two is waited for. A step begins something,
// and is called again when that is over.
//
// Messages go on while the ranks of a node are busy with each other: a step awaits the endpoint
// only where it needs the blocks that come, or the memory of those that go.
template <endpoint Endpoint>
struct node_crossing {
    // The ranks of this node work for as many ranks of one node at a time, from its local rank
    // `first` on.
    struct round {
        int node, first;
    };

    Endpoint& endpoint;
    const node_map nodes;
    shm_transport memory;
    transport& inner = memory;  // called as any transport, so that steps do not inline all of it
    std::vector<round> rounds;  // those of the other nodes, then its own
    table<block> local_send, local_receive;  // the blocks of the in-node step, by local rank

    [[gnu::cold]] node_crossing(Endpoint& l, const shm_region& region)
        : endpoint(l),
          nodes(l),
          memory(region, nodes.local_rank(), nodes.ranks(nodes.mine()).data()),
          local_send(std::size_t(nodes.local_size())),
          local_receive(std::size_t(nodes.local_size())) {
        for (const int node : nodes.others())
            for (int first = 0; first < int(nodes.ranks(node).size()); first += nodes.local_size())
                rounds.push_back({node, first});
        rounds.push_back({nodes.mine(), 0});
    }

    const tuning_options& tuned() const { return memory.tuned(); }

    // The rank that local rank `local` works for in a round; -1: none.
    int at(const round& r, int local) const {
        const auto ranks = nodes.ranks(r.node);
        const std::size_t i = std::size_t(r.first + local);
        return i < ranks.size() ? ranks[i] : -1;
    }

    // Both are true if there is anything to send, or to receive.
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
    void send(packets<Endpoint>& p, int peer) {
        p.send(peer);
        under_way_ = true;
    }
    void receive(packets<Endpoint>& p, int peer, std::size_t sender) {
        p.receive(peer, sender);
        under_way_ = true;
    }
    void await_endpoint() { awaits_endpoint_ = true; }

    void exchange_headers(const call_header& mine) {
        inner.exchange_headers(mine);
        in_node_ = true;
    }
    void exchange_header(const call_header& mine, int local_peer) {
        inner.exchange_header(mine, local_peer);
        in_node_ = true;
    }
    void move_one(const block& b, int local_peer, bool sends) {
        inner.move_one(b, local_peer, sends);
        in_node_ = true;
    }
    void begin(const operation& op) {
        inner.begin(op);
        in_node_ = true;
    }
    void allreduce(operation& op) {
        inner.allreduce(op);
        in_node_ = true;
    }
    // The primitives inside the node, from local_send to local_receive.
    void alltoallv() {
        inner.alltoallv(local_send.data(), local_receive.data());
        in_node_ = true;
    }
    void reduce_scatter(const reduction& job) {
        inner.reduce_scatter(local_send.data(), job);
        in_node_ = true;
    }
    void allgather(const block& mine) {
        inner.allgather(mine, local_receive.data());
        in_node_ = true;
    }
    void broadcast(const block& whole, int local_root) {
        inner.broadcast(whole, local_root);
        in_node_ = true;
    }

    bool in_node() const { return in_node_; }
    // True if no message is under way, which would need this rank to look at the endpoint.
    bool awaits_node_alone() const { return in_node_ && !under_way_; }

    [[gnu::noinline]] bool ready() {
        if (under_way_ && endpoint.poll()) under_way_ = false;
        return !(awaits_endpoint_ && under_way_) && !(in_node_ && !inner.ready());
    }

    // Goes on when ready; true while the in-node step has further rounds.
    bool next() {
        awaits_endpoint_ = false;
        if (in_node_ && inner.next()) return true;
        in_node_ = false;
        return false;
    }

private:
    bool under_way_ = false, awaits_endpoint_ = false, in_node_ = false;
};

}  // namespace hvd::inline v0::detail
