// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "../../core/lean/atomic.hpp"
#include "../../core/tuning.hpp"
#include "../../platform/clock.hpp"
#include "../../protocol/call_header.hpp"
#include "segments.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What a rank has put into its window.
enum class content : std::uint32_t {
    nothing,
    data,
    places,  // of its tensors, which all ranks can reach: nothing has been copied
};

// One filling of a window, and how it is laid out.
struct window_fill {
    content what = content::nothing;
    std::uint64_t rounds = 0;  // how often the window has to be filled
    std::uint64_t chunk = 0;   // bytes a peer gets in a round
    std::uint64_t stride = 0;  // distance between peers' chunks; 0: all read the same
};

// What one rank shows to the others of its node. One writer each, so that a rank that dies in the
// middle leaves nothing locked.
struct alignas(tuning::cache_line) node_slot {
    atomic<std::uint64_t> step{0};  // how many synchronisations this rank has reached
    alignas(tuning::cache_line) atomic<std::uint32_t> left{0};
    atomic<std::uint32_t> reaches{0};  // it may be reading or writing tensors of others
    atomic<std::int64_t> process{0};   // 0: a thread; -1: a process that can't be asked about
    processor_set processors;          // that this rank may run on
    char farewell[256] = {};
    alignas(tuning::cache_line)
        call_header entry[2];  // by parity of the collective: read by peers until the next entry
    alignas(tuning::cache_line) window_fill fill[2];  // by parity of the filling
};

// The memory that all ranks of a node have mapped: a slot and two windows for each, and what else
// they can reach of each other's.
class shm_region {
public:
    // Whole pages, and a page for each rank at least.
    static std::size_t window_for(int ranks, std::size_t wished) {
        const std::size_t least = std::size_t(ranks) * shared_memory::whole_pages(1);
        return shared_memory::whole_pages(wished < least ? least : wished);
    }
    static std::size_t bytes(int ranks, std::size_t window) {
        return slots_bytes(ranks) + 2 * std::size_t(ranks) * window;
    }

    shm_region(void* memory, int ranks, std::size_t window, shared<segments> reachable)
        : memory_(static_cast<std::byte*>(memory)),
          ranks_(ranks),
          window_(window),
          reachable_(std::move(reachable)) {}

    // By one rank, before the others look.
    void construct() const {
        for (int r = 0; r < ranks_; ++r)
            ::new (memory_ + std::size_t(r) * sizeof(node_slot)) node_slot;
    }

    node_slot& slot(int rank) const {
        return *std::launder(
            reinterpret_cast<node_slot*>(memory_ + std::size_t(rank) * sizeof(node_slot)));
    }

    std::byte* window(int rank, std::uint64_t half) const {
        return memory_ + slots_bytes(ranks_) + (2 * std::size_t(rank) + (half & 1)) * window_;
    }

    // Tells the others that a rank is gone, and why; the first reason stays.
    void leave(int rank, std::string_view reason) const noexcept {
        node_slot& mine = slot(rank);
        if (mine.left.load_relaxed() != 0) return;
        store(mine.farewell, reason);
        mine.left.exchange(1);
    }

    bool has_left(int rank) const { return slot(rank).left.load() != 0; }

    // Whether ranks outnumber the processors they run on; the same on all ranks, once all have said
    // where they run.
    bool is_crowded() const {
        processor_set all;
        for (int r = 0; r < ranks_; ++r) all.add(slot(r).processors);
        return ranks_ > all.count();
    }

    int ranks() const { return ranks_; }
    std::size_t window_bytes() const { return window_; }
    segments& reachable() const { return *reachable_; }

private:
    static std::size_t slots_bytes(int ranks) {
        return shared_memory::whole_pages(std::size_t(ranks) * sizeof(node_slot));
    }

    std::byte* memory_;
    int ranks_;
    std::size_t window_;
    shared<segments> reachable_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
