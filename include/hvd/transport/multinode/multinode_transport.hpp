// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../protocol/failure_notice.hpp"
#include "../endpoint_transport.hpp"
#include "cross_allreduce.hpp"
#include "cross_broadcast.hpp"
#include "cross_entry.hpp"
#include "cross_reduce_scatter.hpp"

namespace hvd::inline v0::detail {

// Moves data between ranks of several nodes: by memory inside a node, by messages between nodes.
// Data that several ranks of a node need is sent to that node once.
//
// Reductions are in rank order inside a node and in the order of the nodes between them. Reductions
// that can't be split like this go in rank order by messages between all ranks.
template <endpoint Endpoint>
class multinode_transport final : public transport {
public:
    // `region` is the memory of this rank's node.
    [[gnu::cold]] multinode_transport(Endpoint& endpoint, const shm_region& region)
        : transport(endpoint.rank(), endpoint.size()),
          cross_(endpoint, region),
          by_messages_(endpoint, false),
          entry_(cross_, size_, headers, failure),
          allgather_(cross_),
          allreduce_(cross_, size_, failure),
          reduce_scatter_(cross_, failure),
          broadcast_(cross_),
          notices_(endpoint),
          blocks_(std::size_t(size_)) {
        processors_each = cross_.inner.processors_each;
    }

    void prepare(const tuning_options& t) override {
        by_messages_.prepare(t);
        entry_.prepare(t);
    }
    void retune(const tuning_options& t) noexcept override {
        transport::retune(t);
        cross_.memory.retune(t);
        by_messages_.retune(t);
        entry_.retune(t);
    }

    bool choose(const operation& op) override {
        carries = entry_.carries(op);
        if (carries && op.entry.kind == collective::allreduce) {
            carries = can_split(op.entry.op, op.entry.mode);
            for (std::size_t i = 0; i < op.group_count; ++i)
                carries = carries && !allreduce_.goes_by_library(op, op.groups[i]);
        }
        return false;
    }

    void begin(const operation& op) override {
        failure = nullptr;  // of a call that was refused after the nodes had reduced its tensors
        if (!carries || op.entry.refused) return exchange_headers(op.entry);
        notices_.begin_call();
        copy_header(shown_, op.entry);
        begin_step(step::headers, [&] { entry_.begin(op); });
    }

    void exchange_headers(const call_header& mine) override {
        notices_.begin_call();
        copy_header(shown_, mine);
        begin_step(step::headers, [&] { entry_.begin(mine); });
    }

    void exchange_header(const call_header& mine, int peer) override {
        notices_.begin_message();
        copy_header(shown_, mine);
        peer_ = peer;
        begin_step(step::one_header, [&] {
            if (is_near(peer)) cross_.exchange_header(mine, cross_.nodes.local(peer));
            else entry_.exchange_header(mine, peer);
        });
    }

    void move_one(const block& b, int peer, bool sends) override {
        if (is_near(peer))
            begin_step(step::near_message,
                       [&] { cross_.move_one(b, cross_.nodes.local(peer), sends); });
        else begin_step(step::flat, [&] { flat_.move_one(b, peer, sends); });
    }

    void allreduce(operation& op) override {
        if (!carries) return transport::allreduce(op);
        begin_step(step::carried, [&] { refusing_bytes([&] { entry_.reduce(op); }); });
    }

    void alltoallv(const block* send, const block* receive) override {
        send_ = send;
        receive_ = receive;
        begin_step(step::alltoallv, [&] {
            const auto mine = cross_.nodes.ranks(cross_.nodes.mine());
            for (std::size_t i = 0; i < mine.size(); ++i) {
                cross_.local_send[i] = send[mine[i]];
                cross_.local_receive[i] = receive[mine[i]];
            }
            post_chunk(0);
            cross_.alltoallv();
        });
    }

    void reduce_scatter(const block* send, const reduction& job) override {
        if (can_split(job.op_id, job.mode))
            begin_step(step::reduce_scatter, [&] { reduce_scatter_.begin(send, job, size_); });
        else begin_step(step::flat, [&] { flat_.reduce_scatter(send, job); });
    }

    void allgather(const block& mine, const block* receive) override {
        for (int p = 0; p < size_; ++p) blocks_[std::size_t(p)] = p == rank_ ? mine : receive[p];
        begin_step(step::allgather, [&] { allgather_.begin(blocks_.data(), size_); });
    }

    void broadcast(const block& whole, int root) override {
        if (carries && entry_.comes_to_all(whole.bytes))
            return begin_step(step::carried,
                              [&] { refusing_bytes([&] { entry_.take(whole, root); }); });
        begin_step(step::broadcast, [&] {
            broadcast_.begin(root, whole, size_, carries);
            const int home = cross_.nodes.node(root);
            if (carries && home != cross_.nodes.mine() && rank_ == broadcast_.giver())
                refusing_bytes([&] {
                    copy_bytes(whole.data, entry_.data_of(home, whole.bytes), whole.bytes);
                });
        });
    }

    bool ready() override {
        return this->guarded([&] { return step_ == step::flat ? flat_.ready() : cross_.ready(); });
    }

    data_path path() const override {
        if (carries) return data_path::carried;
        return step_ == step::flat ? data_path::messages : data_path::nodes;
    }

    sleep_end sleep(std::int64_t nanoseconds) override {
        if (step_ == step::flat || !cross_.in_node()) return sleep_at(cross_.endpoint, nanoseconds);
        if (!cross_.awaits_node_alone()) return sleep_end::not_begun;
        return cross_.inner.sleep(nanoseconds);
    }

    bool hopeless() override {
        return this->guarded(
            [&] { return (cross_.in_node() && cross_.inner.hopeless()) || notices_.received(); });
    }

    [[gnu::cold]] bool abandoned() override {
        return this->guarded([&] { return cross_.inner.abandoned() || notices_.anyone_left(); });
    }

    [[gnu::cold]] void forget_processes() noexcept override { cross_.inner.forget_processes(); }

    [[gnu::cold]] void tell_unmade(std::uint64_t context) noexcept override {
        notices_.tell_unmade(context);
    }
    [[gnu::cold]] bool is_unmade(std::uint64_t context) override {
        return this->guarded([&] { return notices_.is_unmade(context); });
    }

    [[gnu::cold]] std::vector<int> missing() override {
        if (step_ == step::flat || !cross_.in_node()) return notices_.pending();
        std::vector<int> ranks = cross_.memory.missing();
        for (int& rank : ranks) rank = rank_of_node(rank);
        if (cross_.awaits_node_alone()) return ranks;
        for (const int rank : notices_.pending()) ranks.push_back(rank);
        return ranks;
    }

    [[gnu::cold]] void fail(verdict reason) override {
        if (!notices_.received()) ask_node();
        if (!notices_.knows_reason()) {
            const std::vector<int> waits_for = missing();
            if (!notices_.alarmed() && (reason == verdict::hopeless || waits_for.empty())) return;
            notices_.confer(waits_for, reason == verdict::expired);
        }
        lost = true;
        found_death = notices_.knows_death() || cross_.memory.found_death;
        cross_.endpoint.cancel();
        notices_.throw_reason(shown_.label());
    }

    // The notice comes first: a rank of this node that sees this one gone knows the reason then.
    void leave(std::string_view reason) noexcept override {
        depart_or_notify(notices_, reason, lost);
        cross_.inner.leave(reason);
    }

protected:
    bool advance() override {
        if (step_ == step::flat) {
            if (flat_.next()) return true;
            keep(flat_.take_failure());
            return false;
        }
        if (cross_.next()) return true;
        keep(cross_.inner.take_failure());
        switch (step_) {
            case step::headers: return refusing_bytes([&] { return entry_.go_on(); });
            case step::one_header:
                return refusing_bytes([&] { return entry_.take_header(peer_, is_near(peer_)); });
            case step::carried:
            case step::near_message: return false;
            case step::alltoallv: return go_on_with_alltoallv();
            case step::reduce_scatter: return reduce_scatter_.go_on();
            case step::allgather: return allgather_.go_on();
            case step::broadcast: return broadcast_.go_on();
            case step::allreduce: return allreduce_.go_on();
            case step::flat: break;
        }
        return false;
    }

    bool allreduce_at_once(const operation& op, const reduction_group& group) override {
        if (!can_split(op.entry.op, op.entry.mode) || !allreduce_.choose(op, group)) return false;
        begin_step(step::allreduce, [&] { allreduce_.begin(op, group); });
        return true;
    }

    void cancel() noexcept override { cross_.endpoint.cancel(); }

private:
    // A step of a primitive; `flat` goes by messages between all ranks. Nothing moves in a carried
    // step: the data has come with the headers.
    enum class step {
        headers,
        one_header,
        carried,
        near_message,
        alltoallv,
        reduce_scatter,
        allgather,
        broadcast,
        allreduce,
        flat
    };

    template <class F>
    void begin_step(step s, F f) {
        step_ = s;
        phase_ = 0;
        this->guarded(f);
    }

    // Runs f, to which other bytes may have come than a rank sends.
    template <class F>
    auto refusing_bytes(F f) {
        try {
            return f();
        } catch (const typename cross_entry<Endpoint>::other_bytes& by) {
            notices_.keep(text("rank ", by.rank, sent_other_bytes), {by.rank});
            notices_.throw_reason(shown_.label());
        }
    }

    void keep(std::exception_ptr later) {
        if (later && !failure) failure = std::move(later);
    }

    // True if the nodes may reduce first, and then their results. Integers with a rounding are
    // summed in more bits than they have, so that a partial sum is no integer of their type. Where
    // the ranks of a node do not follow each other, its result changes places with the ranks
    // between them, which a callable need not allow.
    bool can_split(std::uint8_t op_id, std::uint8_t mode) const {
        return mode == 0 &&
               (cross_.nodes.consecutive() || op_id != std::uint8_t(op::custom<int, false>::id));
    }

    // Every pair of ranks of two nodes goes on by itself, since some pairs have more chunks than
    // others.
    bool post_chunk(std::size_t index) {
        bool any = false;
        for (int i = 1; i < size_; ++i) {
            const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
            if (cross_.nodes.node(from) != cross_.nodes.mine())
                any |= cross_.receive(
                    from, chunk_of(receive_[from], index, tuned_.unstable.exchange_chunk_bytes));
            if (cross_.nodes.node(to) != cross_.nodes.mine())
                any |= cross_.send(
                    to, chunk_of(send_[to], index, tuned_.unstable.exchange_chunk_bytes));
        }
        return any;
    }

    bool go_on_with_alltoallv() {
        if (phase_ > 0 && !post_chunk(std::size_t(phase_))) return false;
        ++phase_;
        cross_.await_endpoint();
        return true;
    }

    bool is_near(int peer) const { return cross_.nodes.node(peer) == cross_.nodes.mine(); }
    int rank_of_node(int local) const {
        return cross_.nodes.ranks(cross_.nodes.mine())[std::size_t(local)];
    }

    // The node's memory says who is gone there. A rank that has left has sent a notice before. The
    // notice may say that others are to blame.
    [[gnu::cold]] void ask_node() {
        if (!cross_.in_node()) return;
        std::vector<int> missing;
        message who = cross_.memory.describe_missing(
            verdict::hopeless, missing, [this](int local) { return rank_of_node(local); });
        for (int local = 0; local < cross_.nodes.local_size() && !missing.empty(); ++local)
            if (local != cross_.nodes.local_rank() && cross_.memory.has_left(local))
                notices_.await(rank_of_node(local));
        if (missing.empty() && cross_.memory.is_elsewhere())
            notices_.keep(text("rank ", peer_, " makes another call"), {peer_});
        if (missing.empty() || notices_.knows_reason() || notices_.alarmed()) return;
        using cause = typename notice_exchange<Endpoint>::cause;
        notices_.keep(std::move(who), std::move(missing),
                      cross_.memory.found_death ? cause::death : cause::other);
    }

    node_crossing<Endpoint> cross_;
    endpoint_transport<Endpoint> by_messages_;
    transport& flat_ = by_messages_;
    cross_entry<Endpoint> entry_;
    cross_allgather<Endpoint> allgather_;
    cross_allreduce<Endpoint> allreduce_;
    cross_reduce_scatter<Endpoint> reduce_scatter_;
    cross_broadcast<Endpoint> broadcast_;
    notice_exchange<Endpoint> notices_;
    table<block> blocks_;  // of an allgather, by rank
    const block* send_ = nullptr;
    const block* receive_ = nullptr;
    call_header shown_;
    step step_ = step::headers;
    int phase_ = 0;
    int peer_ = -1;  // of a message
};

}  // namespace hvd::inline v0::detail
