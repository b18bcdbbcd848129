// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../protocol/comparison.hpp"
#include "../packets.hpp"
#include "cross_reduce_scatter.hpp"

namespace hvd::inline v0::detail {

// The begin of a call: every rank gets the headers of all ranks, and the data of a small call with
// them. The ranks of a node show each other their headers, and each rank sends all headers of its
// node to its partners.
//
// With the headers goes the node's result of an allreduce, which every rank of the node computes.
// The tensor of a broadcast is shared on the root's node, and goes with the headers from each rank;
// a longer one goes from the root alone, and is shared afterwards. If the headers of a node differ,
// its messages have no data, and all ranks see why.
template <endpoint Endpoint>
class cross_entry {
public:
    // `headers` is where the headers of all ranks are found, by rank. `failure` keeps the exception
    // of an operation.
    [[gnu::cold]] cross_entry(node_crossing<Endpoint>& c, int ranks, const call_header** headers,
                              std::exception_ptr& failure)
        : cross_(c),
          headers_(headers),
          failure_(failure),
          ranks_(ranks),
          sizes_(c.nodes),
          most_in_allreduce_(most_in_allreduce(c.tuned())),
          most_in_broadcast_(most_in_broadcast(c.tuned())),
          headers_of_all_(std::size_t(ranks)),
          packets_(c.endpoint, std::size_t(c.nodes.count()), std::size_t(sizes_.largest),
                   most_in_broadcast_),
          partial_(most_in_allreduce_),
          inputs_(std::size_t(c.nodes.count())) {
        for (int rank = 0; rank < ranks; ++rank)
            headers_[rank] = &headers_of_all_[std::size_t(rank)];
        inner_.groups = groups_;
        inner_.out = partial_.data();
    }

    // As in a transport.
    [[gnu::cold]] void prepare(const tuning_options& t) {
        packets_.prepare(most_in_broadcast(t));
        next_partial_ = table<std::byte>(most_in_allreduce(t));
    }
    [[gnu::cold]] void retune(const tuning_options& t) noexcept {
        most_in_allreduce_ = most_in_allreduce(t);
        most_in_broadcast_ = most_in_broadcast(t);
        packets_.resize(most_in_broadcast_);
        partial_ = std::exchange(next_partial_, {});
        inner_.out = partial_.data();
    }

    // True if the data of a call goes with its headers. A root that sends alone has a partner of
    // its own number on each node.
    bool carries(const operation& op) const {
        const std::size_t bytes = bytes_to_carry(op);
        if (bytes == 0 || op.entry.refused || op.group_count > most_groups) return false;
        return comes_to_all(bytes) ||
               (op.entry.kind == collective::broadcast && bytes <= most_in_broadcast_ &&
                cross_.nodes.local(op.entry.root) < sizes_.smallest);
    }
    // True if so many bytes, where they go with headers, come to every rank. Otherwise they come to
    // one rank of each node.
    bool comes_to_all(std::size_t bytes) const { return bytes <= most_in_allreduce_; }

    void begin(const call_header& mine) {
        op_ = nullptr;
        phase_ = 0;
        cross_.exchange_headers(mine);
    }

    // Begins a call that carries its data. The operation stays until this step is over.
    void begin(const operation& op) {
        op_ = &op;
        phase_ = 0;
        const bool reduces = op.entry.kind == collective::allreduce;
        joins_ = reduces || (cross_.nodes.node(op.entry.root) == cross_.nodes.mine() &&
                             comes_to_all(bytes_to_carry(op)));
        if (!joins_) return cross_.exchange_headers(op.entry);
        reduces ? lay_out_reduction(op) : lay_out_sharing(op);
        inner_.entry.kind = collective::allreduce;
        cross_.inner.choose(inner_);
        copy_header(inner_.entry, op.entry);
        cross_.begin(inner_);
    }

    bool go_on() {
        if (phase_ == 0) {
            const bool agreed = gather_headers();
            if (!agreed) op_ = nullptr;
            if (op_ != nullptr && joins_) {
                ++phase_;
                cross_.allreduce(inner_);
                return true;
            }
        }
        if (phase_ < 2) {
            phase_ = 2;
            post();
            return true;
        }
        for (const int node : cross_.nodes.others())
            if (!packets_.read_headers(std::size_t(node), int(cross_.nodes.ranks(node).size()),
                                       [&](int i) -> call_header& { return header_of(node, i); }))
                [[unlikely]]
                throw other_bytes{cross_.nodes.partner(node)};
        return false;
    }

    // The headers of a message. That of a rank of another node goes in a packet.
    void exchange_header(const call_header& mine, int peer) {
        packets_.fill(1, [&](int) -> const call_header& { return mine; }, {});
        cross_.receive(packets_, peer, std::size_t(cross_.nodes.node(peer)));
        cross_.send(packets_, peer);
        cross_.await_endpoint();
    }
    bool take_header(int peer, bool is_near) {
        call_header& to = headers_of_all_[std::size_t(peer)];
        if (is_near) copy_header(to, *cross_.inner.headers[cross_.nodes.local(peer)]);
        else if (!packets_.read_headers(std::size_t(cross_.nodes.node(peer)), 1,
                                        [&](int) -> call_header& { return to; })) [[unlikely]]
            throw other_bytes{peer};
        return false;
    }

    // Reduces the nodes' results, once all headers are there and agree.
    void reduce(const operation& op) {
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const reduction_group& g = op.groups[i];
            if (g.count == 0) continue;
            for (const int node : cross_.nodes.others())
                inputs_[std::size_t(node)] = data_of(node, bytes_of_groups(op)) + g.offset;
            inputs_[std::size_t(cross_.nodes.mine())] = partial_.data() + g.offset;
            keep_failure(failure_, [&] {
                g.function({g.op, inputs_.data(), cross_.nodes.count(), ranks_, op.out + g.offset,
                            g.count, wholes_[i].back(), op.postscale(g)});
            });
        }
    }

    // Takes a broadcast that has come to all.
    void take(const block& whole, int root) {
        const int home = cross_.nodes.node(root), me = cross_.endpoint.rank();
        if (me != root)
            copy_bytes(whole.data,
                       home == cross_.nodes.mine() ? partial_.data() : data_of(home, whole.bytes),
                       whole.bytes);
    }

    // The data that has come from this rank's partner on a node.
    const std::byte* data_of(int node, std::size_t bytes) {
        const std::byte* const data = packets_.data_of(std::size_t(node), bytes);
        if (data == nullptr) [[unlikely]]
            throw other_bytes{cross_.nodes.partner(node)};
        return data;
    }

    // Thrown if a rank has sent what no rank sends, or shows that to its node.
    struct other_bytes {
        int rank;
    };

private:
    static constexpr std::size_t most_groups = 8;

    std::size_t most_in_allreduce(const tuning_options& t) const {
        return most_carried<Endpoint>((cross_.nodes.count() - 1) * sizes_.largest, t);
    }
    std::size_t most_in_broadcast(const tuning_options& t) const {
        return most_carried<Endpoint>(cross_.nodes.count() - 1, t);
    }

    // The numbers of ranks of the nodes.
    struct node_sizes {
        int smallest, largest;
        explicit node_sizes(const node_map& nodes)
            : smallest(nodes.local_size()), largest(smallest) {
            for (const int node : nodes.others()) {
                const int here = int(nodes.ranks(node).size());
                if (here > largest) largest = here;
                if (here < smallest) smallest = here;
            }
        }
    };

    // A "reduction" that takes the bytes of one rank. Its `op` is the local number of that rank.
    static void take_input(const reduce_args& args) {
        copy_bytes(args.out, args.inputs[*static_cast<const int*>(args.op)], args.count);
    }

    call_header& header_of(int node, int local) {
        return headers_of_all_[std::size_t(cross_.nodes.ranks(node)[std::size_t(local)])];
    }

    // Returns true if the headers of this node agree.
    bool gather_headers() {
        bool agreed = true;
        const call_header& first = header_of(cross_.nodes.mine(), 0);
        for (int i = 0; i < cross_.nodes.local_size(); ++i) {
            call_header& h = header_of(cross_.nodes.mine(), i);
            if (!is_header(*cross_.inner.headers[i])) [[unlikely]]
                throw other_bytes{cross_.nodes.ranks(cross_.nodes.mine())[std::size_t(i)]};
            copy_header(h, *cross_.inner.headers[i]);
            agreed = agreed && !h.refused && first_difference(h, first) == field::none;
        }
        return agreed;
    }

    // The allreduce inside the node: to memory of its own, without the division and the postscale.
    void lay_out_reduction(const operation& op) {
        for (std::size_t i = 0; i < op.group_count; ++i) {
            groups_[i] = op.groups[i];
            wholes_[i] = {groups_[i].function, groups_[i].op,
                          partial_power(groups_[i].id, op.entry.op, op.prescale(groups_[i]),
                                        op.postscale(groups_[i]), ranks_, sizes_.largest)};
            groups_[i].function = &partial_reduction::run;
            groups_[i].op = &wholes_[i];
        }
        inner_.in = op.in;
        inner_.group_count = op.group_count;
    }

    // The sharing on the root's node is a reduction of one rank.
    void lay_out_sharing(const operation& op) {
        const int root = op.entry.root;
        giver_ = cross_.nodes.local(root);
        groups_[0] = {&take_input, &giver_, 1, 0, bytes_to_carry(op), nullptr, dtype::byte, false};
        inner_.in = cross_.endpoint.rank() == root ? op.in : op.out;
        inner_.group_count = 1;
    }

    void post() {
        block data{};
        if (op_ != nullptr && joins_) data = {partial_.data(), bytes_to_carry(*op_)};
        else if (op_ != nullptr && op_->entry.root == cross_.endpoint.rank())
            data = {const_cast<std::byte*>(op_->in), bytes_to_carry(*op_)};
        packets_.fill(
            cross_.nodes.local_size(),
            [&](int i) -> const call_header& { return header_of(cross_.nodes.mine(), i); }, data);
        for (const int node : cross_.nodes.others())
            cross_.receive(packets_, cross_.nodes.partner(node), std::size_t(node));
        for (const int rank : cross_.nodes.served()) cross_.send(packets_, rank);
        cross_.await_endpoint();
    }

    node_crossing<Endpoint>& cross_;
    const call_header** const headers_;
    std::exception_ptr& failure_;
    const int ranks_;
    const node_sizes sizes_;
    std::size_t most_in_allreduce_, most_in_broadcast_;
    table<call_header> headers_of_all_;
    packets<Endpoint> packets_;      // by node
    const operation* op_ = nullptr;  // whose data goes with the headers
    bool joins_ = false;             // the ranks of the node bring it together before it goes
    int phase_ = 0, giver_ = 0;
    operation inner_;
    partial_reduction wholes_[most_groups];
    reduction_group groups_[most_groups]{};
    table<std::byte> partial_, next_partial_;  // the node's result
    table<const std::byte*> inputs_;
};

}  // namespace hvd::inline v0::detail
