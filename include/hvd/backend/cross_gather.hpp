// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "cross_reduction.hpp"
#include "operation.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The allreduce of a few bytes: every rank gets everybody's tensor and reduces them by itself, in the
// order in which large ones are reduced. One message crosses instead of two after each other.
template <link Link>
class cross_gather {
public:
    // `failure` keeps what the operation throws.
    cross_gather(crossing<Link>& c, int ranks, std::exception_ptr& failure)
        : cross_(c), failure_(failure), ranks_(ranks), inputs_(std::size_t(ranks)), of_nodes_(std::size_t(c.nodes.count())) {}

    static bool is_for(std::size_t bytes, int ranks) { return bytes <= most_bytes / std::size_t(ranks); }

    // `split`: the tensors of a node are reduced first.
    void begin(const operation& op, const reduction_group& group, bool split) {
        op_ = &op;
        group_ = group;
        split_ = split;
        phase_ = 0;
        bytes_ = group.count * group.element_bytes;
        room_.resize(2 * most_bytes);
    }

    bool go_on() {
        if (phase_ == 0) exchange_in_node();
        if (phase_ == 1) exchange_between_nodes();
        if (phase_ == 2) reduce();
        return phase_++ < 2;
    }

private:
    static constexpr std::size_t most_bytes = std::size_t(32) << 10;  // of all ranks together

    // The tensors lie in the order of the nodes, so that those of one node are one message.
    std::byte* place(int node) {
        std::size_t before = 0;
        for (int k = 0; k < node; ++k) before += cross_.nodes.ranks(k).size();
        return room_.data() + before * bytes_;
    }
    block tensors_of(int node) { return {place(node), cross_.nodes.ranks(node).size() * bytes_}; }

    void exchange_in_node() {
        const std::size_t me = std::size_t(cross_.nodes.local_rank());
        const std::byte* const in = op_->in + group_.offset;
        const block mine{const_cast<std::byte*>(in), bytes_};
        std::byte* const at = place(cross_.nodes.mine());
        for (std::size_t local = 0; local < cross_.local_send.size(); ++local) {
            cross_.local_send[local] = mine;
            cross_.local_receive[local] = {at + local * bytes_, bytes_};
        }
        if (bytes_ > 0) std::memcpy(at + me * bytes_, in, bytes_);
        cross_.local_send[me] = cross_.local_receive[me] = {};
        cross_.exchange();
    }

    void exchange_between_nodes() {
        for (const int node : cross_.nodes.others()) cross_.receive(cross_.nodes.partner(node), tensors_of(node));
        for (const int rank : cross_.nodes.served()) cross_.send(rank, tensors_of(cross_.nodes.mine()));
        cross_.await_link();
    }

    void reduce() {
        if (bytes_ == 0 || failure_) return;
        try {
            if (split_) reduce_by_node();
            else reduce_by_rank();
        } catch (...) {
            failure_ = std::current_exception();
        }
    }

    void reduce_by_rank() {
        for (int node = 0; node < cross_.nodes.count(); ++node)
            for (const int rank : cross_.nodes.ranks(node))
                inputs_[std::size_t(rank)] = place(node) + std::size_t(cross_.nodes.local(rank)) * bytes_;
        group_.function({group_.op, inputs_.data(), ranks_, ranks_, out(), group_.count, op_->entry.prescale, op_->entry.postscale});
    }

    void reduce_by_node() {
        const unfinished whole{group_.function, group_.op};
        std::byte* result = room_.data() + most_bytes;
        for (int node = 0; node < cross_.nodes.count(); ++node) {
            const int ranks = int(cross_.nodes.ranks(node).size());
            for (int i = 0; i < ranks; ++i) inputs_[std::size_t(i)] = place(node) + std::size_t(i) * bytes_;
            reduce_partially({&whole, inputs_.data(), ranks, 1, result, group_.count, op_->entry.prescale, 1});
            of_nodes_[std::size_t(node)] = std::exchange(result, result + bytes_);
        }
        group_.function({group_.op, of_nodes_.data(), cross_.nodes.count(), ranks_, out(), group_.count, 1, op_->entry.postscale});
    }

    std::byte* out() const { return op_->out + group_.offset; }

    crossing<Link>& cross_;
    std::exception_ptr& failure_;
    const int ranks_;
    const operation* op_ = nullptr;
    reduction_group group_{};
    bool split_ = true;
    int phase_ = 0;
    std::size_t bytes_ = 0;
    std::vector<std::byte> room_;
    std::vector<const std::byte*> inputs_, of_nodes_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
