// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../comm/topology.hpp"
#include "kept/kept_object.hpp"

namespace hvd::inline v0::detail {

// The ranks that have committed a step together, and copies of the local objects of some of them.
struct peer_copies {
    std::vector<std::uint64_t> members;  // their numbers, by rank
    gathered<std::byte> held;            // by rank, as they were sent here
    std::vector<std::uint64_t> staying;  // those of the members who were in all epochs since
    bool began_anew = false;             // this rank has its objects of before, and not these

    bool has_copy_of(std::size_t rank) const {
        return rank < held.counts.size() && held.counts[rank] > 0;
    }
    std::span<const std::byte> copy_of(std::size_t rank) const {
        return std::span(held.values).subspan(held.displacements[rank], held.counts[rank]);
    }
};

// Puts the copies of local objects into bytes, as `kept_writer` puts a state into a file.
class peer_writer {
public:
    explicit peer_writer(std::vector<std::byte>& to) : to_(to) {}
    void put(const void* data, std::size_t n) { detail::put(to_, data, n); }
    template <class N>
    void put_number(const N& number) {
        put(&number, sizeof number);
    }

private:
    std::vector<std::byte>& to_;
};

class peer_reader {
public:
    explicit peer_reader(std::span<const std::byte> from) : left_(from) {}
    void take(void* to, std::size_t n) {
        const auto bytes = detail::take(left_, n);
        if (n > 0) std::memcpy(to, bytes.data(), n);
    }
    template <class N>
    N take_number() {
        N number{};
        take(&number, sizeof number);
        return number;
    }
    template <class Container>
    std::size_t take_size(std::size_t bytes_of_one, const Container&) {
        return take_count(bytes_of_one);
    }
    std::size_t take_count(std::size_t bytes_of_one) {
        const auto count = take_number<std::uint64_t>();
        if (count > left_.size() / bytes_of_one)
            refuse("ends early: ", count, " times ", bytes_of_one, " bytes expected, ",
                   left_.size(), " left");
        return std::size_t(count);
    }
    template <class... Parts>
    [[gnu::always_inline, noreturn]] void refuse(const Parts&... parts) const {
        throw usage_error(-1, text("hvd: the copy of a lost rank's object ", parts...));
    }

private:
    std::span<const std::byte> left_;
};

// The rank that holds the copies of another one: on the next node, or the next rank where all are
// on one node.
inline int keeper_of(int rank, const std::vector<int>& nodes) {
    struct {
        int me;
        const std::vector<int>& nodes;
        int rank() const { return me; }
        int size() const { return int(nodes.size()); }
        int node_of(int r) const { return nodes[std::size_t(r)]; }
    } const place{rank, nodes};
    const node_map map(place);
    if (map.count() == 1) return (rank + 1) % place.size();
    return map.partner((map.mine() + 1) % map.count());
}

// Sends this rank's copies to the rank that holds them, and returns those that come here.
template <class Comm>
peer_copies exchange_copies(Comm& comm, const std::vector<std::uint64_t>& members,
                            const std::vector<std::byte>& own) {
    if (comm.size() == 1) return {members, {}, members};
    std::vector<std::size_t> counts(members.size(), 0);
    counts[std::size_t(keeper_of(comm.rank(), place_of(comm).nodes))] = own.size();
    return {members, comm.alltoall(own, counts, {.name = "elastic local objects"}), members};
}

}  // namespace hvd::inline v0::detail
