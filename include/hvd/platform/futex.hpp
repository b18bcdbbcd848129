// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../core/lean/atomic.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Sleeps until `word` differs from `value` and somebody wakes the sleepers of the word, or some
// nanoseconds have passed. It may return earlier. The word may lie in memory that processes share.
inline void sleep_while(const atomic<std::uint32_t>& word, std::uint32_t value,
                        std::int64_t nanoseconds) {
    static_assert(sizeof word == sizeof value);
    const timespec span{time_t(nanoseconds / 1'000'000'000), long(nanoseconds % 1'000'000'000)};
    syscall(SYS_futex, &word, FUTEX_WAIT, value, &span, nullptr, 0);
}

// Wakes all that sleep on a word, whose value has changed.
inline void wake_sleepers(const atomic<std::uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
