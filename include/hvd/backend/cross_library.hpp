// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "cross_reduction.hpp"
#include "operation.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A link whose library can allreduce between nodes: among the ranks with this local rank, where every
// node has one. allreduce_across() waits.
template <class Link>
concept allreduces_across = requires(Link& l, std::byte* data, std::size_t n, dtype id, int op) {
    { l.can_allreduce_across(id, op) } -> std::convertible_to<bool>;
    l.allreduce_across(data, n, id, op);
};

// The allreduce that leaves what is between the nodes to the link's library: every local rank that all
// nodes have reduces a slice in its node, the library that between the nodes, and the node shares it.
template <link Link>
class cross_library {
public:
    // `failure` keeps what the operation throws.
    cross_library(crossing<Link>& c, int ranks, std::exception_ptr& failure) : cross_(c), failure_(failure), ranks_(ranks) {
        slices_ = c.nodes.local_size();
        for (const int node : c.nodes.others())
            if (int(c.nodes.ranks(node).size()) < slices_) slices_ = int(c.nodes.ranks(node).size());
    }

    static bool is_for(Link& l, const operation& op, const reduction_group& group) {
        if constexpr (allreduces_across<Link>) return l.can_allreduce_across(group.id, op.entry.op);
        else return false;
    }

    void begin(const operation& op, const reduction_group& group) {
        op_ = &op;
        group_ = group;
        group_.bounds = nullptr;
        whole_ = {group.function, group.op};
        phase_ = 0;
    }

    bool go_on() {
        if (phase_ == 0) reduce_in_node();
        if (phase_ == 1) {
            reduce_across();
            share();
        }
        return phase_++ < 2;
    }

private:
    block slice(const std::byte* buffer, int local) const {
        return local < slices_ ? group_.part(buffer, local, slices_) : block{};
    }
    block mine() const { return slice(op_->out, cross_.nodes.local_rank()); }

    void reduce_in_node() {
        for (int local = 0; local < cross_.nodes.local_size(); ++local)
            cross_.local_send[std::size_t(local)] = slice(op_->in, local);
        cross_.combine({&reduce_partially, &whole_, group_.element_bytes, mine().bytes / group_.element_bytes, mine().data,
                        op_->entry.prescale, 1});
    }

    void reduce_across() {
        const std::size_t count = mine().bytes / group_.element_bytes;
        if (count == 0) return;
        if constexpr (allreduces_across<Link>) cross_.link.allreduce_across(mine().data, count, group_.id, op_->entry.op);
        const std::byte* const sum = mine().data;
        try {
            group_.function({group_.op, &sum, 1, ranks_, mine().data, count, 1, op_->entry.postscale});
        } catch (...) {
            failure_ = std::current_exception();
        }
    }

    void share() {
        const std::size_t me = std::size_t(cross_.nodes.local_rank());
        for (int local = 0; local < cross_.nodes.local_size(); ++local) {
            cross_.local_send[std::size_t(local)] = mine();
            cross_.local_receive[std::size_t(local)] = slice(op_->out, local);
        }
        cross_.local_send[me] = cross_.local_receive[me] = {};
        cross_.exchange();
    }

    crossing<Link>& cross_;
    std::exception_ptr& failure_;
    int ranks_, slices_ = 1, phase_ = 0;
    const operation* op_ = nullptr;
    reduction_group group_{};
    unfinished whole_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
