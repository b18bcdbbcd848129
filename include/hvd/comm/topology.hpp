// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../collective/call/calls_base.hpp"
#include "../transport/node_map.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Who shares a node with whom, as seen from one rank. Features A3–A5.
struct topology {
    int local_rank = 0, cross_rank = 0;
    std::vector<int> local, cross;  // ranks, ascending
    bool homogeneous = true;
};

inline int position_of(int rank, slice<const int> ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i)
        if (ranks[i] == rank) return int(i);
    return -1;
}

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
        if (nodes.local(r) == nodes.local_rank()) result.cross.push_back(r);
        if (nodes.ranks(nodes.node(r)).size() != mine.size()) result.homogeneous = false;
    }
    result.cross_rank = position_of(endpoint.rank(), result.cross);
    return result;
}

// A refusal that every rank can see alike needs no message, but the call keeps its place in the
// order.
template <class Comm>
Comm subset(Comm& comm, std::span<const int> ranks) {
    auto& own = access::session_of(comm);
    call agreed;
    agreed.describe(collective::agree, "subset");
    std::vector<int> members(ranks.begin(), ranks.end());
    sort_ranks(members, [](int a, int b) { return a < b; });
    hash content;
    for (std::size_t i = 0; i < members.size(); ++i) {
        content.add(std::uint64_t(members[i]));
        if (members[i] < 0 || members[i] >= comm.size())
            agreed.refuse(text("hvd: subset: ", members[i],
                               " is not a rank of this communicator of size ", comm.size()));
        else if (i > 0 && members[i] == members[i - 1])
            agreed.refuse(text("hvd: subset: rank ", members[i], " stands twice"));
    }
    agreed.op.entry.content = content.value();
    agreed.op.entry.count = members.size();
    own.run(agreed.op, {});
    const int context = own.next_context();
    if (position_of(comm.rank(), members) < 0) return Comm();
    return Comm(access::endpoint_of(comm).subset(members, context), own.options());
}

// All ranks are about to do the same, or all throw.
[[gnu::cold]] inline void agree_on(session& own, std::string_view what) {
    call agreed;
    agreed.describe(collective::agree, what);
    agreed.op.entry.content = hash().add(what).value();
    own.run(agreed.op, {});
}

// In the place of a call that the peers make: they are told why this rank does not. Throws that
// here, too, where ranks compare their calls.
[[gnu::cold]] inline void run_refused(session& own, std::string_view why, time_span deadline) {
    call refused;
    refused.describe(collective::agree, "a refusal");
    refused.refuse(why);
    own.run(refused.op, deadline);
}

// All ranks' numbers, by rank, in the order of the communicator's calls: of what hvd does, which no
// call of the user's is taken for.
[[gnu::cold]] inline table<std::int64_t> tell_all(session& own, std::string_view what,
                                                  slice<const std::int64_t> mine) {
    table<std::int64_t> all(mine.size() * std::size_t(own.size()));
    call told;
    told.describe(collective::allgather, what);
    told.describe(view(mine.data(), mine.size()));
    told.op.entry.content = hash().add(what).value();
    told.op.in = reinterpret_cast<const std::byte*>(mine.data());
    told.op.out = reinterpret_cast<std::byte*>(all.data());
    own.run(told.op, {});
    return all;
}

template <class Comm>
Comm split(Comm& comm, int color, int key) {
    auto& own = access::session_of(comm);
    const std::int64_t mine[2] = {color, key};
    const auto all = tell_all(own, "split", {mine, 2});
    const int context = own.next_context();
    if (color < 0) return Comm();
    std::vector<int> members;
    for (int r = 0; r < comm.size(); ++r)
        if (all[2 * std::size_t(r)] == color) members.push_back(r);
    sort_ranks(members, [&](int a, int b) {
        return all[2 * std::size_t(a) + 1] < all[2 * std::size_t(b) + 1];
    });
    return Comm(access::endpoint_of(comm).subset(members, context), own.options());
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
