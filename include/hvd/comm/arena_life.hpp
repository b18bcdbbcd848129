// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/lean/atomic.hpp"
#include "../platform/thread.hpp"

namespace hvd::inline v0::detail {

// Tells that an arena has ended to those who may outlive it. All copies tell the same. Any thread
// has one.
class arena_life {
public:
    arena_life() : state_(new state) {}
    arena_life(const arena_life& other) noexcept : state_(other.state_) { state_->copies.add(1); }
    arena_life& operator=(const arena_life&) = delete;
    ~arena_life() {
        if (state_->copies.add(-1) == 0) delete state_;
    }

    // Calls `use`, during which the arena does not end. False if it has.
    template <class Use>
    bool during(const Use& use) const {
        const lock_guard held(state_->lock);
        if (state_->has_ended) return false;
        use();
        return true;
    }
    void end() const {
        const lock_guard held(state_->lock);
        state_->has_ended = true;
    }

private:
    struct state {
        atomic<int> copies{1};
        mutex lock;
        bool has_ended = false;
    };
    state* state_;
};

struct arena_access {
    template <class Arena>
    static auto life_of(const Arena& arena) -> decltype(arena.life_) {
        return arena.life_;
    }
};

}  // namespace hvd::inline v0::detail
