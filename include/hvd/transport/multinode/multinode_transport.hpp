// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../protocol/failure_notice.hpp"
#include "../endpoint_transport.hpp"
#include "cross_allreduce.hpp"
#include "cross_broadcast.hpp"
#include "cross_reduce_scatter.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Moves data between ranks of several nodes: by memory inside a node, by messages between nodes,
// and what several ranks of a node need crosses once.
//
// Reductions are in rank order inside a node and in the order of the nodes between them. Those that
// can't be taken apart like this go in rank order by messages between all ranks.
template <endpoint Endpoint>
class multinode_transport final : public transport {
public:
    // `region` is of this rank's node.
    [[gnu::cold]] multinode_transport(Endpoint& endpoint, const shm_region& region)
        : transport(endpoint.rank(), endpoint.size()),
          cross_(endpoint, region),
          by_messages_(endpoint),
          spread_(cross_),
          slices_(cross_, size_, failure_),
          reduction_(cross_, failure_),
          broadcast_(cross_),
          word_(endpoint),
          entries_(std::size_t(size_)),
          parts_(std::size_t(size_)),
          sent_(std::size_t(size_)) {
        // In the order of the nodes: a node's headers come in one message.
        const call_header* at = entries_.data();
        for (int node = 0; node < cross_.nodes.count(); ++node)
            for (const int rank : cross_.nodes.ranks(node)) headers[std::size_t(rank)] = at++;
    }

    void enter(const call_header& mine) override {
        entered_ = mine;
        if (mine.kind != collective::agree) moves_ = {mine.kind, mine.op, mine.mode, mine.root};
        begin(step::enter, [&] { cross_.enter(mine); });
    }

    // What moves is known by what was entered: where every rank gets the same, it crosses once for
    // each node.
    void exchange(const block* send, const block* receive) override {
        const block& for_all = send[rank_ == 0 ? 1 : 0];
        switch (moves_.kind) {
            case collective::allgather:
                for (int p = 0; p < size_; ++p) parts_[std::size_t(p)] = receive[p];
                parts_[std::size_t(rank_)] = for_all;
                return begin(step::spread, [&] { spread_.begin(parts_.data(), size_); });
            case collective::broadcast:
                return begin(step::broadcast, [&] {
                    broadcast_.begin(moves_.root,
                                     rank_ == moves_.root ? for_all : receive[moves_.root], size_);
                });
            default: return begin(step::exchange, [&] { begin_exchange(send, receive); });
        }
    }

    void combine(const block* send, const reduction& job) override {
        if (splits()) return begin(step::combine, [&] { reduction_.begin(send, job, size_); });
        begin(step::flat, [&] { flat_.combine(send, job); });
    }

    bool reduces_to_all(const operation& op) const override { return !op.groups.empty(); }
    void reduce_to_all(operation& op) override {
        op_ = &op;
        groups_ = op.groups;
        begin_group();
    }

    bool ready() override {
        return this->guarded([&] { return step_ == step::flat ? flat_.ready() : cross_.ready(); });
    }

    bool next() override {
        return this->guarded([&] {
            if (go_on()) return true;
            if (std::exchange(spreads_then_, false)) {
                begin(step::spread, [&] { spread_.begin(parts_.data(), size_); });
                return true;
            }
            if (groups_.size() > 1) {
                groups_ = {groups_.data() + 1, groups_.size() - 1};
                begin_group();
                return true;
            }
            groups_ = {};
            return false;
        });
    }

    bool hopeless() override {
        return this->guarded(
            [&] { return (cross_.in_node() && cross_.inner.hopeless()) || word_.heard(); });
    }

    bool may_spin() const override { return cross_.inner.may_spin(); }

    [[gnu::cold]] void fail(verdict reason) override {
        if (!word_.heard() && !(reason == verdict::expired && word_.heard_within(patience())))
            if (!(cross_.in_node() ? ask_node(reason) : word_.keep_pending())) return;
        lost = true;
        cross_.endpoint.cancel();
        throw peer_error(rank_,
                         text("hvd: ", entered_.label(), " on rank ", rank_, ": ", word_.why()),
                         word_.missing());
    }

    void leave(std::string_view reason, std::int64_t patience) noexcept override {
        cross_.inner.leave(reason, patience);
        depart_or_notify(word_, cross_.endpoint, reason, patience, lost);
    }

private:
    enum class step { enter, exchange, combine, slices, spread, broadcast, flat };

    // What the collective that is under way does; agreements in its middle change nothing.
    struct movement {
        collective kind = collective::barrier;
        std::uint8_t op = 0, mode = 0;
        int root = 0;
    };

    void cancel() noexcept override { cross_.endpoint.cancel(); }

    template <class F>
    void begin(step s, F f) {
        step_ = s;
        phase_ = 0;
        this->guarded(f);
    }

    void keep(std::exception_ptr failure) {
        if (failure && !failure_) failure_ = std::move(failure);
    }

    // Integers with a rounding are summed in more bits than they have, so that a part of the sum is
    // no integer of theirs. Where a node's ranks do not follow each other, its result changes
    // places with those between, which a callable need not stand.
    bool splits() const {
        if (moves_.mode != 0) return false;
        return cross_.nodes.consecutive() || moves_.op != std::uint8_t(op::custom<int, false>::id);
    }

    // In slices, or each rank its part first.
    void begin_group() {
        const operation& op = *op_;
        const reduction_group& group = groups_.front();
        const std::size_t bytes = group.count * group.element_bytes;
        if (splits() && (slices_.is_for(bytes) || slices_.is_for_library(op, group)))
            return begin(step::slices, [&] { slices_.begin(op, group); });
        for (int p = 0; p < size_; ++p) {
            sent_[std::size_t(p)] = group.part(op.in, p, size_);
            parts_[std::size_t(p)] = group.part(op.out, p, size_);
        }
        spreads_then_ = true;
        combine(sent_.data(),
                {group.function, group.op, group.element_bytes, group.count_of(rank_, size_),
                 parts_[std::size_t(rank_)].data, op.entry.prescale, op.entry.postscale});
    }

    // What was waited for is there.
    bool go_on() {
        if (step_ == step::flat) {
            if (flat_.next()) return true;
            keep(flat_.take_failure());
            return false;
        }
        if (cross_.next()) return true;
        keep(cross_.inner.take_failure());
        switch (step_) {
            case step::enter: return go_on_entering();
            case step::exchange: return go_on_exchanging();
            case step::combine: return reduction_.go_on();
            case step::slices: return slices_.go_on();
            case step::spread: return spread_.go_on();
            case step::broadcast: return broadcast_.go_on();
            case step::flat: break;
        }
        return false;
    }

    block entries_of(int node) {
        const auto ranks = cross_.nodes.ranks(node);
        return {reinterpret_cast<std::byte*>(
                    const_cast<call_header*>(headers[std::size_t(ranks.front())])),
                ranks.size() * sizeof(call_header)};
    }

    // All headers of a node go to each rank of the others, from its partner.
    bool go_on_entering() {
        if (phase_++ > 0) return false;
        const auto mine = cross_.nodes.ranks(cross_.nodes.mine());
        const block own = entries_of(cross_.nodes.mine());
        for (std::size_t i = 0; i < mine.size(); ++i)
            std::memcpy(own.data + i * sizeof(call_header), cross_.inner.headers[i],
                        sizeof(call_header));
        for (const int node : cross_.nodes.others())
            cross_.receive(cross_.nodes.partner(node), entries_of(node));
        for (const int rank : cross_.nodes.served()) cross_.send(rank, own);
        cross_.await_endpoint();
        return true;
    }

    void begin_exchange(const block* send, const block* receive) {
        send_ = send;
        receive_ = receive;
        const auto mine = cross_.nodes.ranks(cross_.nodes.mine());
        for (std::size_t i = 0; i < mine.size(); ++i) {
            cross_.local_send[i] = send[mine[i]];
            cross_.local_receive[i] = receive[mine[i]];
        }
        post_chunk(0);
        cross_.exchange();
    }

    // Between two nodes every pair of ranks is by itself: some have more chunks than others.
    bool post_chunk(std::size_t index) {
        bool any = false;
        for (int i = 1; i < size_; ++i) {
            const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
            if (cross_.nodes.node(from) != cross_.nodes.mine())
                any |= cross_.receive(from,
                                      chunk_of(receive_[from], index, tuning::chunk_of_exchange));
            if (cross_.nodes.node(to) != cross_.nodes.mine())
                any |= cross_.send(to, chunk_of(send_[to], index, tuning::chunk_of_exchange));
        }
        return any;
    }

    bool go_on_exchanging() {
        if (phase_ > 0 && !post_chunk(std::size_t(phase_))) return false;
        ++phase_;
        cross_.await_endpoint();
        return true;
    }

    // Deadlines are alike, and who is waited for may be innocent, and wait itself for one who is
    // not: whoever is nearer to that one speaks first. Who has not entered is known best on its
    // node; later on, the ranks of a node wait for each other because one of them waits for the
    // endpoint.
    std::int64_t patience() const {
        if (!cross_.in_node()) return tuning::notice_patience;
        return step_ == step::enter ? 0 : tuning::notice_patience_in_node;
    }

    // The node's memory says who is missing there.
    [[gnu::cold]] bool ask_node(verdict reason) {
        std::vector<int> missing;
        const auto ranks = cross_.nodes.ranks(cross_.nodes.mine());
        message who = cross_.memory.describe_missing(
            reason, missing, [&](int local) { return ranks[std::size_t(local)]; });
        if (missing.empty()) return false;
        word_.keep(std::move(who), std::move(missing));
        return true;
    }

    node_crossing<Endpoint> cross_;
    endpoint_transport<Endpoint> by_messages_;
    transport& flat_ = by_messages_;
    cross_allgather<Endpoint> spread_;
    cross_allreduce<Endpoint> slices_;
    cross_reduce_scatter<Endpoint> reduction_;
    cross_broadcast<Endpoint> broadcast_;
    notice_exchange<Endpoint> word_;
    table<call_header> entries_;
    table<block> parts_, sent_;
    const block* send_ = nullptr;
    const block* receive_ = nullptr;
    const operation* op_ = nullptr;
    slice<const reduction_group>
        groups_;  // that are yet to be reduced to all, the one under way first
    call_header entered_;
    movement moves_;
    step step_ = step::enter;
    int phase_ = 0;
    bool spreads_then_ = false;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
