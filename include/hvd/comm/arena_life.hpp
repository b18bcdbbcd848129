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

// An arena has this. It is made when somebody asks: without memory for it an arena would be one of
// some ranks.
class asked_life {
public:
    asked_life() = default;
    asked_life(const asked_life&) = delete;
    asked_life& operator=(const asked_life&) = delete;
    ~asked_life() { delete life_; }

    const arena_life& get() {
        const lock_guard held(mutex_);
        if (life_ == nullptr) life_ = new arena_life;
        return *life_;
    }
    void end() noexcept {
        if (life_ != nullptr) life_->end();
    }

private:
    mutex mutex_;
    arena_life* life_ = nullptr;
};

struct arena_access {
    template <class Arena>
    static auto life_of(Arena& arena) -> decltype(arena_life(arena.life_.get())) {
        return arena.life_.get();
    }
};

}  // namespace hvd::inline v0::detail
