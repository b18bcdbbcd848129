// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../collective/call/calls_base.hpp"
#include "../execution/meet_on_all.hpp"
#include "../transport/node_map.hpp"

namespace hvd::inline v0::detail {

// Who shares a node with whom, as seen from one rank.
struct topology {
    int local_rank = -1, cross_rank = -1;
    std::vector<int> local, cross;  // ranks, ascending
    std::vector<int> nodes;         // each rank's
    bool homogeneous = true;
};

inline int position_of(int rank, slice<const int> ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i)
        if (ranks[i] == rank) return int(i);
    return -1;
}

/// The members of a communicator that say where its rank is among the nodes.
template <class Comm>
class placed_rank {
public:
    /// This rank's number among the ranks of its node; -1 if empty.
    int local_rank() const noexcept { return topology_.local_rank; }
    /// The number of ranks on this node; 0 if empty.
    int local_size() const noexcept { return int(topology_.local.size()); }
    /// This node's number among those that have a rank with this local rank; -1 if empty.
    int cross_rank() const noexcept { return topology_.cross_rank; }
    /// The number of nodes that have a rank with this local rank; 0 if empty.
    int cross_size() const noexcept { return int(topology_.cross.size()); }
    /// True if all nodes have equally many ranks.
    bool is_homogeneous() const noexcept { return topology_.homogeneous; }

protected:
    placed_rank() = default;
    explicit placed_rank(topology t) : topology_(std::move(t)) {}
    placed_rank(placed_rank&& other) noexcept : topology_(std::exchange(other.topology_, {})) {}
    placed_rank& operator=(placed_rank&& other) noexcept {
        topology_ = std::exchange(other.topology_, {});
        return *this;
    }

    topology topology_;

private:
    friend const topology& place_of(const placed_rank& rank) { return rank.topology_; }
};

// Few numbers, once: no need of <algorithm>, which costs every user 0.15 s of compilation.
template <class Before>
void sort_ranks(std::vector<int>& ranks, Before before) {
    for (std::size_t i = 1; i < ranks.size(); ++i)
        for (std::size_t k = i; k > 0 && before(ranks[k], ranks[k - 1]); --k)
            std::swap(ranks[k], ranks[k - 1]);
}

template <class Endpoint>
topology topology_of(const Endpoint& endpoint) {
    const node_map nodes(endpoint);
    const auto mine = nodes.ranks(nodes.mine());
    topology result;
    result.local_rank = nodes.local_rank();
    result.local = std::vector<int>(mine.data(), mine.data() + mine.size());
    for (int r = 0; r < endpoint.size(); ++r) {
        result.nodes.push_back(nodes.node(r));
        if (nodes.local(r) == nodes.local_rank()) result.cross.push_back(r);
        if (nodes.ranks(nodes.node(r)).size() != mine.size()) result.homogeneous = false;
    }
    result.cross_rank = position_of(endpoint.rank(), result.cross);
    return result;
}

// One rank of a communicator whose ranks have told a number of their node.
struct numbered_node {
    int me;
    slice<const std::int64_t> numbers;  // by rank; those of a node are equal

    int rank() const { return me; }
    int size() const { return int(numbers.size()); }
    // The first rank of the node: no number of 64 bits is cut off.
    int node_of(int rank) const {
        int first = 0;
        while (numbers[std::size_t(first)] != numbers[std::size_t(rank)]) ++first;
        return first;
    }
};

// The topology of some ranks, as seen from one of them.
inline topology topology_among(const topology& all, int rank, slice<const int> members) {
    std::vector<std::int64_t> nodes;
    for (const int member : members) nodes.push_back(all.nodes[std::size_t(member)]);
    return topology_of(numbered_node{position_of(rank, members), nodes});
}

// The ranks of one colour, ordered by key, then by rank. `numbers` are the colours and keys of all
// ranks.
inline std::vector<int> members_of_color(slice<const std::int64_t> numbers, int color) {
    std::vector<int> members;
    for (std::size_t r = 0; 2 * r < numbers.size(); ++r)
        if (numbers[2 * r] == color) members.push_back(int(r));
    sort_ranks(members, [&](int a, int b) {
        return numbers[2 * std::size_t(a) + 1] < numbers[2 * std::size_t(b) + 1];
    });
    return members;
}

// Agrees on the members of a subset, and returns them in ascending order. A list is refused if it
// has no rank of the communicator, or one twice.
template <header_channel C>
std::vector<int> agree_on_subset(C& channel, std::span<const int> ranks, time_point limit) {
    std::vector<int> members;
    call_header mine = agreement_header("subset");
    const auto sort = [&] {
        members.assign(ranks.begin(), ranks.end());
        sort_ranks(members, [](int a, int b) { return a < b; });
        hash content;
        for (std::size_t i = 0; i < members.size(); ++i) {
            content.add(std::uint64_t(members[i]));
            if (members[i] < 0 || members[i] >= channel.size())
                mine.refuse(text("hvd: subset: ", members[i],
                                 " is not a rank of this communicator of size ", channel.size()));
            else if (i > 0 && members[i] == members[i - 1])
                mine.refuse(text("hvd: subset: rank ", members[i], " stands twice"));
        }
        mine.content = content.value();
    };
    exchange_after(attempt(mine, sort), [&] {
        agree_on(channel, mine, limit, [&](auto say) { say("ranks", print_list(members)); });
    });
    return members;
}

// The record of a communicator that was made of another one has a key that only its ranks have.
template <class Comm>
void name_record(Comm& part, std::uint64_t parent, int context, const char* name,
                 slice<const int> ranks) {
    record_head& head = static_cast<call_driver&>(access::session_of(part)).record().head;
    hash key;
    key.add(parent).add(std::uint64_t(context));
    for (const int rank : ranks) key.add(std::uint64_t(rank));
    head.key = key.value();
    store(head.label, name);
}

// Makes the communicator of some ranks, in the order that `members()` gives. It is empty on the
// others. All ranks of `comm` take part. All get their communicator, or all throw: the rank that
// failed its own exception, the others peer_error with its text.
template <class Comm, class Members>
Comm make_subset(Comm& comm, const char* name, int context, Members members) {
    session& own = access::session_of(comm);
    auto& endpoint = access::endpoint_of(comm);
    std::vector<int> ranks;
    bool is_member = false;
    const auto choose = [&] {
        ranks = members();
        is_member = position_of(comm.rank(), ranks) >= 0;
    };
    Comm part;
    try {
        if constexpr (requires { endpoint.prepare_subset(ranks, context, never); }) {
            // Its ranks wait for each other below: so all of them must come.
            decltype(endpoint.prepare_subset(ranks, context, never)) prepared;
            run_on_all(own, name, never, [&] {
                choose();
                if (is_member)
                    prepared =
                        endpoint.prepare_subset(ranks, context, limit_of(own.options().timeout));
            });
            meet_on_all(own, name, never, context, [&](const auto& gone) {
                if (!is_member) return;
                prepared->give_up_when(gone);
                prepared->join();
                part = Comm(std::move(prepared), own.options());
            });
        } else {
            run_on_all(own, name, never, [&] {
                choose();
                if (is_member) part = Comm(endpoint.subset(ranks, context), own.options());
            });
        }
    } catch (...) {
        access::discard(part);
        if constexpr (requires { endpoint.forget_subset(context); })
            endpoint.forget_subset(context);
        throw;
    }
    if (part) {
        name_record(part, static_cast<call_driver&>(own).record().head.key, context, name, ranks);
        access::set_parents(part, std::move(ranks));
    }
    if constexpr (requires { part.observer().on_split(comm.observer()); })
        if (part) part.observer().on_split(comm.observer());
    return part;
}

template <class Comm>
Comm subset(Comm& comm, std::span<const int> ranks) {
    auto& own = access::session_of(comm);
    std::vector<int> members = agree_on_subset(own, ranks, never);
    return make_subset(comm, "subset", own.next_context(), [&] { return std::move(members); });
}

template <class Comm>
Comm split(Comm& comm, int color, int key) {
    auto& own = access::session_of(comm);
    const std::int64_t mine[2] = {color, key};
    const auto all = numbers_of_all(own, "split", {mine, 2}, never);
    return make_subset(comm, "split", own.next_context(), [&] {
        return color < 0 ? std::vector<int>() : members_of_color(all, color);
    });
}

template <class Comm>
Comm duplicate(Comm& comm) {
    auto& own = access::session_of(comm);
    agree(own, agreement_header("duplicate"), never);
    return make_subset(comm, "duplicate", own.next_context(), [&] {
        std::vector<int> all;
        for (int r = 0; r < comm.size(); ++r) all.push_back(r);
        return all;
    });
}

// Returns a duplicate that hvd uses behind something that orders the calls itself: they may come
// from several threads.
template <class Comm>
Comm own_duplicate(Comm& comm) {
    Comm own = duplicate(comm);
    access::session_of(own).user().take_turns();
    return own;
}

}  // namespace hvd::inline v0::detail
