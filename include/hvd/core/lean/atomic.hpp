// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

namespace hvd {
inline namespace v0 {
namespace detail {

// <atomic> brings std::string, std::mutex and more since C++20, a fifth of a second for every user
// of hvd; the compilers' own functions bring nothing. An integer, a bool or a pointer.
template <class T>
class atomic {
public:
    constexpr atomic(T value = {}) noexcept : value_(value) {}
    atomic(const atomic&) = delete;
    atomic& operator=(const atomic&) = delete;

    // Sees what was written before the store whose value it reads.
    T load() const noexcept { return __atomic_load_n(&value_, __ATOMIC_ACQUIRE); }
    void store(T value) noexcept { __atomic_store_n(&value_, value, __ATOMIC_RELEASE); }

    // In one order on all ranks: for two of which each sets one of these and then looks at the
    // other's.
    T exchange(T value) noexcept { return __atomic_exchange_n(&value_, value, __ATOMIC_SEQ_CST); }
    T load_in_order() const noexcept { return __atomic_load_n(&value_, __ATOMIC_SEQ_CST); }

    // Where something else orders what goes with it.
    T load_relaxed() const noexcept { return __atomic_load_n(&value_, __ATOMIC_RELAXED); }
    void store_relaxed(T value) noexcept { __atomic_store_n(&value_, value, __ATOMIC_RELAXED); }

private:
    T value_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
