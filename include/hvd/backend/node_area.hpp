// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "../detail/atomic.hpp"
#include "transport.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// How a sender has laid out its window for one exchange.
struct window_plan {
    std::uint64_t rounds = 0;   // how often the window has to be filled
    std::uint64_t portion = 0;  // bytes a peer gets in a round
    std::uint64_t stride = 0;   // distance between peers' portions; 0: all read the same
};

// What one rank shows to the others of its node. One writer each, so that a rank that dies in the
// middle leaves nothing locked.
struct alignas(64) node_slot {
    atomic<std::uint64_t> step{0};  // how many synchronisations this rank has reached
    alignas(64) atomic<std::uint32_t> left{0};
    atomic<std::int64_t> process{0};
    char farewell[256] = {};
    record entry[2];             // by parity of the collective: read by peers until the next entry
    window_plan plan[2];         // by parity of the exchange
    atomic<const block*> blocks{nullptr};  // threads only: straight from there
};

// The memory that all ranks of a node have mapped: a slot for each, and two windows for each where
// ranks can't read each other's memory.
class node_area {
public:
    static std::size_t bytes(int ranks, std::size_t window) {
        return std::size_t(ranks) * (sizeof(node_slot) + 2 * window);
    }

    // `window` is 0 where tensors are read where they lie.
    node_area(void* memory, int ranks, std::size_t window)
        : memory_(static_cast<std::byte*>(memory)), ranks_(ranks), window_(window) {}

    // By one rank, before the others look.
    void construct() const {
        for (int r = 0; r < ranks_; ++r) ::new (memory_ + std::size_t(r) * sizeof(node_slot)) node_slot;
    }

    node_slot& slot(int rank) const {
        return *std::launder(reinterpret_cast<node_slot*>(memory_ + std::size_t(rank) * sizeof(node_slot)));
    }

    std::byte* window(int rank, std::uint64_t half) const {
        return memory_ + std::size_t(ranks_) * sizeof(node_slot) + (2 * std::size_t(rank) + (half & 1)) * window_;
    }

    // Tells the others that a rank is gone, and why; the first reason stays.
    void leave(int rank, std::string_view reason) const noexcept {
        node_slot& mine = slot(rank);
        if (mine.left.load_relaxed() != 0) return;
        store(mine.farewell, reason);
        mine.left.store(1);
    }

    int ranks() const { return ranks_; }
    std::size_t window_bytes() const { return window_; }

private:
    std::byte* memory_;
    int ranks_;
    std::size_t window_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
