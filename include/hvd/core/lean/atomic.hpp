// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"

namespace hvd::inline v0::detail {

// T is an integer, a bool or a pointer. <atomic> includes std::string, std::mutex and more since
// C++20. It would add 13 % to the time to compile a function with two collectives at -O0, 23 % at
// -O2, 26 % in the compiled form. The compilers' own functions need no header.
template <class T>
class atomic {
public:
    constexpr atomic(T value = {}) noexcept : value_(value) {}
    atomic(const atomic&) = delete;
    atomic& operator=(const atomic&) = delete;

    // An acquiring load: it sees everything written before the store whose value it reads.
    T load() const noexcept { return __atomic_load_n(&value_, __ATOMIC_ACQUIRE); }
    void store(T value) noexcept { __atomic_store_n(&value_, value, __ATOMIC_RELEASE); }

    // Sequentially consistent: all ranks see these in one order. Two ranks need this when each sets
    // its own flag and then looks at the other's.
    T exchange(T value) noexcept { return __atomic_exchange_n(&value_, value, __ATOMIC_SEQ_CST); }
    T load_in_order() const noexcept { return __atomic_load_n(&value_, __ATOMIC_SEQ_CST); }

    T add(T more) noexcept { return __atomic_add_fetch(&value_, more, __ATOMIC_SEQ_CST); }

    // Stores `wanted` if the value is `expected`, and returns true then. Otherwise it is an
    // acquiring load.
    bool compare_exchange(T expected, T wanted) noexcept {
        return __atomic_compare_exchange_n(&value_, &expected, wanted, false, __ATOMIC_ACQ_REL,
                                           __ATOMIC_ACQUIRE);
    }

    // For values whose order something else guarantees.
    T load_relaxed() const noexcept { return __atomic_load_n(&value_, __ATOMIC_RELAXED); }
    void store_relaxed(T value) noexcept { __atomic_store_n(&value_, value, __ATOMIC_RELAXED); }

private:
    T value_;
};

// Everything that this thread stored before is seen by all ranks before it loads anything after.
inline void full_fence() noexcept { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

}  // namespace hvd::inline v0::detail
