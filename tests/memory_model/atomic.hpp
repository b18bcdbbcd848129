// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <model.hpp>
#include <type_traits>

#include "../../standard.hpp"

// Stands in for hvd's header of this name: the same orders, for Relacy.
namespace hvd::inline v0::detail {

template <class T>
class atomic {
    using shown = std::conditional_t<std::is_pointer_v<T>, std::uintptr_t, T>;
    static shown show(T value) noexcept { return __builtin_bit_cast(shown, value); }
    static T take(shown value) noexcept { return __builtin_bit_cast(T, value); }

public:
    constexpr atomic(T value = {}) noexcept : value_(value) {
        if (!std::is_constant_evaluated() && memory_model::now_simulated.runs)
            memory_model::make_shadow<shown>(this, show(value));
    }
    atomic(const atomic&) = delete;
    atomic& operator=(const atomic&) = delete;

    T load() const noexcept { return load_as(order::load, rl::mo_acquire, rl::mo_relaxed); }
    void store(T value) noexcept {
        if (auto* const a = own())
            return a->store(show(value), is(order::store) ? rl::mo_relaxed : rl::mo_release,
                            RL_INFO);
        value_ = value;
    }
    T exchange(T value) noexcept {
        if (auto* const a = own())
            return take(a->exchange(
                show(value), is(order::exchange) ? rl::mo_release : rl::mo_seq_cst, RL_INFO));
        return std::exchange(value_, value);
    }
    T load_in_order() const noexcept {
        return load_as(order::load_in_order, rl::mo_seq_cst, rl::mo_acquire);
    }
    T add(T more) noexcept {
        if (auto* const a = own())
            return take(shown(a->fetch_add(show(more), rl::mo_seq_cst, RL_INFO) + show(more)));
        return value_ += more;
    }
    bool compare_exchange(T expected, T wanted) noexcept {
        if (auto* const a = own()) {
            shown before = show(expected);
            return a->compare_exchange_strong(before, show(wanted), rl::mo_acq_rel, RL_INFO,
                                              rl::mo_acquire, RL_INFO);
        }
        if (value_ != expected) return false;
        value_ = wanted;
        return true;
    }
    T load_relaxed() const noexcept { return load_as(order::load, rl::mo_relaxed, rl::mo_relaxed); }
    void store_relaxed(T value) noexcept {
        if (auto* const a = own()) return a->store(show(value), rl::mo_relaxed, RL_INFO);
        value_ = value;
    }

private:
    using order = memory_model::order;

    rl::atomic<shown>* own() const noexcept { return memory_model::shadow_of<shown>(this); }
    bool is(order what) const noexcept { return memory_model::now_simulated.weakens(what, this); }
    T load_as(order what, rl::memory_order strong, rl::memory_order weak) const noexcept {
        if (auto* const a = own()) return take(a->load(is(what) ? weak : strong, RL_INFO));
        return value_;
    }

    T value_;
};

inline void full_fence() noexcept {
    if (memory_model::now_simulated.runs &&
        !memory_model::now_simulated.weakens(memory_model::order::fence, nullptr))
        rl::atomic_thread_fence(rl::mo_seq_cst, RL_INFO);
}

}  // namespace hvd::inline v0::detail
