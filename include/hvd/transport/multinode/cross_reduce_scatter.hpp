// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../operation.hpp"
#include "node_crossing.hpp"
#include "partial_reduction.hpp"

namespace hvd::inline v0::detail {

// Each rank gets its slice of a reduction: every node reduces that slice over its own ranks, in
// rank order, and sends the result to the rank, which reduces the results of the nodes in the order
// of the nodes. A slice crosses the network once for each node, however many ranks the node has.
template <endpoint Endpoint>
class cross_reduce_scatter {
public:
    // `failure` keeps the exception of an operation.
    [[gnu::cold]] cross_reduce_scatter(node_crossing<Endpoint>& c, std::exception_ptr& failure)
        : cross_(c),
          failure_(failure),
          largest_(largest_node(c.nodes)),
          partial_(c.endpoint),
          arrived_(c.endpoint),
          inputs_(std::size_t(c.nodes.count())) {}

    // send[p] is this rank's block of the slice of rank p.
    void begin(const block* send, const reduction& job, int ranks) {
        send_ = send;
        job_ = job;
        ranks_ = ranks;
        whole_ = {job.function, job.op,
                  partial_power(job.id, job.op_id, job.prescale, job.postscale, ranks, largest_)};
        const std::size_t longest = longest_of(send, ranks);
        chunk_bytes_ = chunk_for(job.element_bytes, cross_.tuned().chunk_bytes);
        chunks_ = (longest + chunk_bytes_ - 1) / chunk_bytes_;
        room_ = longest < chunk_bytes_ ? longest : chunk_bytes_;
        partial_.reserve(2 * cross_.rounds.size() * room_);
        arrived_.reserve(2 * std::size_t(cross_.nodes.count()) * room_);
        turn_ = round_ = 0;
        awaited_ = false;
    }

    // In each turn a chunk is reduced inside the nodes, while the chunk before it crosses.
    bool go_on() {
        for (;;) {
            while (turn_ < chunks_ && round_ < cross_.rounds.size())
                if (reduce_in_node(round_++)) return true;
            if (!std::exchange(awaited_, true)) {
                cross_.await_endpoint();
                return true;
            }
            if (turn_ < chunks_) post();
            if (turn_ > 0) finish(turn_ - 1);
            if (turn_ == chunks_) return false;
            ++turn_;
            round_ = 0;
            awaited_ = false;
        }
    }

private:
    int me() const { return cross_.endpoint.rank(); }
    block chunk(int rank, std::size_t index) const {
        return chunk_of(send_[rank], index, chunk_bytes_);
    }

    // There is memory for two chunks of each: while one is on its way the other is filled.
    std::byte* place(const message_memory<Endpoint>& places, std::size_t number,
                     std::size_t turn) const {
        return places.data() + (2 * number + turn % 2) * room_;
    }

    bool reduce_in_node(std::size_t round) {
        const auto& r = cross_.rounds[round];
        std::size_t bytes = 0;
        for (int local = 0; local < cross_.nodes.local_size(); ++local) {
            const int rank = cross_.at(r, local);
            const block b = rank < 0 ? block{} : chunk(rank, turn_);
            cross_.local_send[std::size_t(local)] = b;
            bytes += b.bytes;
        }
        if (bytes == 0) return false;
        const std::size_t mine = cross_.local_send[std::size_t(cross_.nodes.local_rank())].bytes;
        cross_.reduce_scatter({&partial_reduction::run, &whole_, job_.element_bytes,
                               mine / job_.element_bytes, place(partial_, round, turn_),
                               job_.prescale, 1, job_.op_id, job_.mode, job_.id});
        return true;
    }

    void post() {
        const std::size_t bytes = chunk(me(), turn_).bytes;
        for (const int node : cross_.nodes.others())
            cross_.receive(cross_.nodes.partner(node),
                           {place(arrived_, std::size_t(node), turn_), bytes});
        for (std::size_t round = 0; round + 1 < cross_.rounds.size(); ++round) {
            const int rank = cross_.at(cross_.rounds[round], cross_.nodes.local_rank());
            if (rank >= 0)
                cross_.send(rank, {place(partial_, round, turn_), chunk(rank, turn_).bytes});
        }
    }

    void finish(std::size_t turn) {
        const std::size_t bytes = chunk(me(), turn).bytes;
        if (bytes == 0) return;
        for (int node = 0; node < cross_.nodes.count(); ++node)
            inputs_[std::size_t(node)] = node == cross_.nodes.mine()
                                             ? place(partial_, cross_.rounds.size() - 1, turn)
                                             : place(arrived_, std::size_t(node), turn);
        keep_failure(failure_, [&] {
            job_.function({job_.op, inputs_.data(), cross_.nodes.count(), ranks_,
                           job_.out + turn * chunk_bytes_, bytes / job_.element_bytes,
                           whole_.back(), job_.postscale});
        });
    }

    node_crossing<Endpoint>& cross_;
    std::exception_ptr& failure_;
    const block* send_ = nullptr;
    reduction job_{};
    partial_reduction whole_;
    int largest_, ranks_ = 0;
    std::size_t chunk_bytes_ = 1, chunks_ = 0, room_ = 0, turn_ = 0, round_ = 0;
    bool awaited_ = false;
    message_memory<Endpoint> partial_, arrived_;  // by round; by node
    table<const std::byte*> inputs_;
};

}  // namespace hvd::inline v0::detail
