// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include <time.h>

#include "../core/lean/atomic.hpp"
#include "../core/tuning.hpp"
#include "linux.hpp"

#if HVD_LINUX
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace hvd::inline v0::detail {

// Sleeps until `word` differs from `value` and somebody wakes the sleepers of the word, or some
// nanoseconds have passed. It may return earlier. The word may lie in memory that processes share.
// Only Linux wakes a sleeper there. On other systems the sleep is short, and the caller looks
// again.
inline void sleep_while(const atomic<std::uint32_t>& word, std::uint32_t value,
                        std::int64_t nanoseconds) {
#if HVD_LINUX
    static_assert(sizeof word == sizeof value);
#if defined(SYS_futex_time64)  // on processors of 32 bits, where seconds may have 64
    constexpr long call = sizeof(time_t) > sizeof(long) ? SYS_futex_time64 : SYS_futex;
#else
    constexpr long call = SYS_futex;
#endif
    const timespec span{time_t(nanoseconds / 1'000'000'000), long(nanoseconds % 1'000'000'000)};
    syscall(call, &word, FUTEX_WAIT, value, &span, nullptr, 0);
#else
    if (word.load() != value) return;
    const timespec span{0,
                        long(nanoseconds < tuning::sleep_time ? nanoseconds : tuning::sleep_time)};
    nanosleep(&span, nullptr);
#endif
}

// Wakes all that sleep on a word, whose value has changed.
inline void wake_sleepers([[maybe_unused]] const atomic<std::uint32_t>& word) {
#if HVD_LINUX
    syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

}  // namespace hvd::inline v0::detail
