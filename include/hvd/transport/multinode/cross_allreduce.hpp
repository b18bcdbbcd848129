// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../operation.hpp"
#include "cross_reduce_scatter.hpp"

namespace hvd::inline v0::detail {

// An endpoint whose library can allreduce between nodes: among the ranks with the same local rank,
// if every node has one. allreduce_across() waits.
template <class Endpoint>
concept allreduces_across =
    requires(Endpoint& l, std::byte* data, std::size_t n, dtype id, int op) {
        { l.can_allreduce_across(id, op) } -> std::convertible_to<bool>;
        l.allreduce_across(data, n, id, op);
    };

// The allreduce of middling tensors, in one step: every local rank that all nodes have reduces its
// slice inside its node, gets the slices of the other nodes from the ranks with its local rank, and
// the ranks of the node gather the results. One message crosses to each node, with the whole slice,
// where the two steps for large tensors take one after another. The library of the endpoint may do
// the part between the nodes.
template <endpoint Endpoint>
class cross_allreduce {
public:
    // `failure` keeps the exception of an operation.
    [[gnu::cold]] cross_allreduce(node_crossing<Endpoint>& c, int ranks,
                                  std::exception_ptr& failure)
        : cross_(c),
          failure_(failure),
          ranks_(ranks),
          largest_(largest_node(c.nodes)),
          partial_(c.endpoint),
          inputs_(std::size_t(c.nodes.count())) {
        slices_ = c.nodes.local_size();
        for (const int node : c.nodes.others())
            if (int(c.nodes.ranks(node).size()) < slices_)
                slices_ = int(c.nodes.ranks(node).size());
    }

    // True if this algorithm is the one for a group. By slices it sends more than by two steps,
    // which pays for little data only. The library is used where it was asked for, and can reduce
    // the elements.
    bool choose(const operation& op, const reduction_group& group) {
        const std::size_t nodes = std::size_t(cross_.nodes.count()), bytes = group.bytes(),
                          most = cross_.tuned().unstable.most_in_slices;
        by_library_ = goes_by_library(op, group);
        return by_library_ || (bytes <= most && bytes * (nodes - 1) * (nodes - 2) / nodes <= most);
    }

    bool goes_by_library(const operation& op, const reduction_group& group) const {
        if constexpr (allreduces_across<Endpoint>)
            return cross_.endpoint.can_allreduce_across(group.id, op.entry.op);
        else return false;
    }

    // Begins the algorithm that was chosen.
    void begin(const operation& op, const reduction_group& group) {
        op_ = &op;
        group_ = group;
        group_.bounds = nullptr;
        whole_ = {group.function, group.op,
                  by_library_ ? 1
                              : partial_power(group.id, op.entry.op, op.prescale(group),
                                              op.postscale(group), ranks_, largest_)};
        phase_ = 0;
        bytes_ = mine().bytes;
        const std::size_t room = by_library_ ? 0 : bytes_ * std::size_t(cross_.nodes.count());
        partial_.reserve(room);
    }

    bool go_on() {
        if (phase_ == 0) reduce_in_node();
        if (phase_ == 1) by_library_ ? reduce_by_library() : exchange_across();
        if (phase_ == 2) {
            reduce();
            gather_in_node();
        }
        return phase_++ < 3;
    }

private:
    block slice_of(const std::byte* buffer, int local) const {
        return local < slices_ ? group_.slice_of(buffer, local, slices_) : block{};
    }
    block mine() const { return slice_of(op_->out, cross_.nodes.local_rank()); }
    std::size_t count() const { return bytes_ / group_.element_bytes; }
    // The result of a node for this rank's slice. The library works in place.
    std::byte* place(int node) {
        return by_library_ ? mine().data : partial_.data() + std::size_t(node) * bytes_;
    }

    void reduce_in_node() {
        for (int local = 0; local < cross_.nodes.local_size(); ++local)
            cross_.local_send[std::size_t(local)] = slice_of(op_->in, local);
        reduction job = op_->reduction_of(group_, count(), place(cross_.nodes.mine()));
        job.function = &partial_reduction::run;
        job.op = &whole_;
        cross_.reduce_scatter(job);
    }

    void exchange_across() {
        const block own{place(cross_.nodes.mine()), bytes_};
        for (const int node : cross_.nodes.others()) {
            if (bytes_ == 0) break;
            const int peer = cross_.nodes.ranks(node)[std::size_t(cross_.nodes.local_rank())];
            cross_.receive(peer, {place(node), bytes_});
            cross_.send(peer, own);
        }
        cross_.await_endpoint();
    }

    void reduce_by_library() {
        if constexpr (allreduces_across<Endpoint>)
            if (bytes_ > 0)
                cross_.endpoint.allreduce_across(mine().data, count(), group_.id, op_->entry.op);
    }

    void reduce() {
        if (bytes_ == 0) return;
        const int inputs = by_library_ ? 1 : cross_.nodes.count();
        for (int node = 0; node < inputs; ++node) inputs_[std::size_t(node)] = place(node);
        keep_failure(failure_, [&] {
            group_.function({group_.op, inputs_.data(), inputs, ranks_, mine().data, count(),
                             whole_.back(), op_->postscale(group_)});
        });
    }

    void gather_in_node() {
        for (int local = 0; local < cross_.nodes.local_size(); ++local)
            cross_.local_receive[std::size_t(local)] = slice_of(op_->out, local);
        cross_.allgather(mine());
    }

    node_crossing<Endpoint>& cross_;
    std::exception_ptr& failure_;
    int ranks_, largest_, slices_ = 1, phase_ = 0;
    bool by_library_ = false;
    const operation* op_ = nullptr;
    reduction_group group_{};
    partial_reduction whole_;
    std::size_t bytes_ = 0;
    message_memory<Endpoint> partial_;  // by node
    table<const std::byte*> inputs_;
};

}  // namespace hvd::inline v0::detail
