// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include "../core/lean/atomic.hpp"

// Stands in for hvd's header of this name: a sleeper without a limit in time, so that a bell that
// does not ring leaves him asleep.
namespace hvd::inline v0::detail {

inline void sleep_while(const atomic<std::uint32_t>& word, std::uint32_t value, std::int64_t) {
    while (word.load() == value) rl::yield(1, RL_INFO);
}
inline void wake_sleepers(const atomic<std::uint32_t>&) {}

}  // namespace hvd::inline v0::detail
