// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <deque>

#include "../../core/engine_options.hpp"
#include "coordinator.hpp"
#include "outbox.hpp"
#include "rank_tree.hpp"

namespace hvd::inline v0::detail {

// The place of a rank in the tree: its neighbours, its words for them, and the decisions that it
// has heard of.
class negotiating_rank {
public:
    using outgoing = outbox::outgoing;

    // Counts of this rank's work, for statistics and tests.
    struct work {
        std::uint64_t messages_sent = 0, messages_received = 0, bytes_sent = 0, words = 0;
        std::uint64_t cache_hits = 0, cache_misses = 0;
    };

    bool next_message(outgoing& out) {
        if (!outbox_.next(out)) return false;
        ++work_.messages_sent;
        work_.bytes_sent += out.bytes.size();
        return true;
    }
    const work& counted() const { return work_; }

    // The end of the engine because of a rank, if it is among the decisions to come.
    const decision* end_to_come() const {
        for (const decision& d : decisions_)
            if (d.kind == decision::what::ended && d.rank >= 0) return &d;
        return nullptr;
    }

    // Later decisions follow these values.
    void retune(const engine_tuning& to) {
        options_.fusion_threshold = to.fusion_threshold;
        options_.largest_first = to.largest_first;
        options_.predict = to.prediction;
    }

    // Called when a child says that a tensor of the host is ready there and below it; null: nobody
    // wants to know.
    void (*on_child_ready)(void* listener, const std::string& name, int rank) = nullptr;
    void* listener = nullptr;

protected:
    negotiating_rank(int rank, int size, const negotiation_options& options)
        : rank_(rank),
          size_(size),
          parent_(parent_of(rank, options.fanout)),
          options_(options),
          children_(children_of(rank, size, options.fanout)) {}

    child_rank* child_of(int rank) {
        for (child_rank& c : children_)
            if (c.rank == rank) return &c;
        return nullptr;
    }
    std::size_t index_of(const child_rank& c) const { return std::size_t(&c - children_.data()); }

    // Words of this generation, and words that hold in all of them.
    message_writer& up() { return outbox_.to(parent_, generation_); }
    message_writer& up_always() { return outbox_.to(parent_, outbox::always); }
    message_writer& down(const child_rank& c) { return outbox_.to(c.rank, generation_); }
    message_writer& down_always(const child_rank& c) { return outbox_.to(c.rank, outbox::always); }

    void tell(decision::what kind, int rank = -1) {
        decision& d = decisions_.emplace_back();
        d.kind = kind;
        d.rank = rank;
    }

    // A child has said that a tensor is ready. Nobody observes those of devices.
    void tell_ready(const std::string& name, const signature& s, int child) const {
        if (on_child_ready == nullptr || s.where == tensor_memory::device) return;
        on_child_ready(listener, name, child);
    }

    const int rank_, size_, parent_;
    negotiation_options options_;
    std::vector<child_rank> children_;
    std::uint32_t generation_ = 0;
    outbox outbox_;
    std::deque<decision> decisions_;
    work work_;
};

}  // namespace hvd::inline v0::detail
