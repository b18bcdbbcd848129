// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>

#include <sys/stat.h>

#include "../platform/process.hpp"
#include "../platform/shared_memory.hpp"
#include "../protocol/agreement.hpp"
#include "../transport/node_map.hpp"
#include "../transport/shm/shm_region.hpp"
#include "map_together.hpp"

namespace hvd::inline v0::detail {

// The memory that the ranks of one node have in common, as one of them sees it: the region of a
// communicator, and the segments that arenas share later. The endpoint of the communicator says who
// shares a node.
class node_memory {
public:
    // The place of a rank on its node. It is found before, since it needs memory of its own.
    struct position {
        int nodes = 0, first = 0, ranks = 0, mine = 0;

        position() = default;
        template <class Endpoint>
        explicit position(const Endpoint& endpoint) {
            const node_map map(endpoint);
            nodes = map.count();
            first = map.ranks(map.mine())[0];
            ranks = map.local_size();
            mine = map.local_rank();
        }
    };

    node_memory() : reachable_(shared<segments>::make()) {}

    // That of a subset of the ranks, who reach the segments of all.
    node_memory for_subset() const {
        node_memory made;
        made.reachable_ = shared<segments>::make(reachable_);
        return made;
    }

    // Null if no memory is shared.
    const shm_region* region() const { return region_.ranks() > 0 ? &region_ : nullptr; }

    // Makes memory that the ranks of each node map, if every node can. Otherwise messages are used,
    // and every rank knows it.
    template <class Endpoint>
    [[gnu::cold]] void make(Endpoint& endpoint, const position& here, std::size_t requested) {
        const std::size_t window = shm_region::window_for(here.ranks, requested);
        const std::size_t bytes = shm_region::bytes(here.ranks, window),
                          own = shm_region::windows_of(here.mine, here.ranks, window);
        // Each rank touches its own windows first, so that they lie near its processor.
        memory_ = map_together(endpoint, making, here.first, bytes, here.mine == 0 ? 0 : own,
                               own + tuning::windows * window,
                               {shm_region::deposits_of(here.mine, here.ranks, window),
                                shm_region::deposits_of(here.mine + 1, here.ranks, window)});
        memory_.close_file();
        if (!memory_) return;
        shm_region region(memory_.data(), here.ranks, window, reachable_);
        if (here.mine == 0) region.construct();
        // Others look at a slot once its rank has come to the next agreement.
        const bool same_processes = is_same_on_node(endpoint, "/proc/self/ns/pid"),
                   same_clocks = is_same_on_node(endpoint, "/proc/self/ns/time");
        // -1: ranks of different containers, whose process numbers differ. Where their clocks
        // differ, the times at which a process was started do.
        region.slot(here.mine).process.store_relaxed(same_processes ? getpid() : -1);
        region.slot(here.mine).started = same_clocks ? process_status::of(getpid()).started : 0;
        region.slot(here.mine).processors = processor_set::of_this_thread();
        const std::uint64_t word = number_of(here.mine);
        region.slot(here.mine).word.store(std::uint64_t(reinterpret_cast<std::uintptr_t>(&word)));
        agree(endpoint, agreement_header(making), never);
        region.set_reads_private(all_have(endpoint, making, reads_all(region, here)));
        region_ = region;
    }

    // The segments that arenas share.
    const shared<segments>& arenas() const { return reachable_; }

    // Returns this rank's part of a new segment of its node, in which rank r has `bytes[r]`. It is
    // null on all ranks if the system refuses it to one. Ranks that share no memory get memory of
    // their own. All ranks come, which have prepared arenas(); what they tell each other travels
    // over the channel, which has a timeout. Behind the last of it, a rank may still fail alone.
    template <header_channel C, class Endpoint>
    std::byte* share(C& channel, const Endpoint& endpoint, std::span<const std::size_t> bytes) {
        const int me = endpoint.rank();
        const std::size_t mine = bytes[std::size_t(me)];
        reachable_->begin();
        if (region() == nullptr)
            return kept(shared_memory::of_this_process(mine), 0, mine, 0, mine);
        std::size_t all = shared_memory::whole_part(1), begin = 0;
        int first = -1;
        for (int p = 0; p < endpoint.size(); ++p) {
            if (endpoint.node_of(p) != endpoint.node_of(me)) continue;
            if (first < 0) first = p;
            if (p == me) begin = all;
            all += shared_memory::whole_part(bytes[std::size_t(p)]);
        }
        shared_memory memory = map_together(channel, "arena", first, all, begin, begin + mine);
        if (!memory) {
            reachable_->refused_by(memory.refusal());
            return nullptr;
        }
        const std::uint64_t id = memory.how_to_open().id;
        return kept(std::move(memory), id, all, begin, begin + shared_memory::whole_part(mine));
    }

    // Takes back what share() gave: no call of any rank uses it any more.
    void unshare(std::byte* part) noexcept { reachable_->discard(part); }

private:
    // The word of a rank, which another one finds if it reads the right process.
    static std::uint64_t number_of(int rank) { return 0x6876642d776f7264u + std::uint64_t(rank); }
    // True if this rank can read the word of each other one in its process. The system may allow it
    // to none, as in some containers.
    [[gnu::cold]] static bool reads_all(const shm_region& region, const position& here) {
        bool all = region.slot(here.mine).process.load_relaxed() > 0;
        for (int p = 0; p < here.ranks && all; ++p) {
            std::uint64_t word = 0;
            if (p != here.mine)
                all = region.read_private(p, region.slot(p).word.load(),
                                          reinterpret_cast<std::byte*>(&word), sizeof word) == 0 &&
                      word == number_of(p);
        }
        return all;
    }

    static constexpr const char* making = "making of a communicator";

    // Keeps the addresses of memory until all ranks have given it up, and returns this rank's part,
    // [begin, end). Id 0 is for memory of this rank alone.
    std::byte* kept(shared_memory memory, std::uint64_t id, std::size_t bytes, std::size_t begin,
                    std::size_t end) noexcept {
        std::byte* const data = static_cast<std::byte*>(memory.data());
        if (data != nullptr) reachable_->add(id, std::move(memory), bytes, begin, end);
        else reachable_->refused_by(memory.refusal());
        return data != nullptr ? data + begin : nullptr;
    }

    // True if the ranks of the node are in one namespace of a kind, or the system knows none.
    template <class Endpoint>
    [[gnu::cold]] static bool is_same_on_node(Endpoint& endpoint, const char* name) {
        struct stat status{};
        const bool known = stat(name, &status) == 0;
        const std::int64_t mine = known ? std::int64_t(status.st_ino) : 0;
        const auto all = numbers_of_all(endpoint, making, {&mine, 1}, never);
        for (int p = 0; p < endpoint.size(); ++p)
            if (endpoint.node_of(p) == endpoint.node_of(endpoint.rank()) &&
                all[std::size_t(p)] != mine)
                return false;
        return true;
    }

    shared_memory memory_;
    shared<segments> reachable_;
    shm_region region_{nullptr, 0, 0, {}};
};

}  // namespace hvd::inline v0::detail
