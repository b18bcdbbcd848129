// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include <sched.h>
#include <time.h>
#include <unistd.h>

namespace hvd {
inline namespace v0 {
namespace detail {

// The one place where hvd looks at the time or sleeps: a simulator replaces this file.
// Times are nanoseconds of the steady clock.
using time_point = std::int64_t;
constexpr time_point never = INT64_MAX;
constexpr std::int64_t milliseconds = 1'000'000;

inline time_point now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

inline void sleep_for(std::int64_t nanoseconds) {
    const timespec span{time_t(nanoseconds / 1'000'000'000), long(nanoseconds % 1'000'000'000)};
    nanosleep(&span, nullptr);
}

inline void give_way() { sched_yield(); }

inline int processors() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return int(sysconf(_SC_NPROCESSORS_ONLN));
}

// How a waiting rank spends its time: a short spin where every rank has a core, then the core is
// given away at each look, and after a few milliseconds the rank sleeps between looks.
class backoff {
public:
    explicit backoff(bool may_spin) : spins_(may_spin ? 2000 : 0) {}

    // True about once per millisecond of waiting: the time for the dearer checks.
    bool pause() {
        if (spins_ > 0) {
            --spins_;
            return false;
        }
        if (looks_ == 0) started_ = checked_ = now();
        ++looks_;
        if (asleep_) sleep_for(milliseconds / 20);
        else give_way();
        if (!asleep_ && looks_ % 16 != 0) return false;
        const time_point time = now();
        if (time - started_ > 20 * milliseconds) asleep_ = true;
        if (time - checked_ < milliseconds) return false;
        checked_ = time;
        return true;
    }

private:
    int spins_;
    unsigned long looks_ = 0;
    bool asleep_ = false;
    time_point started_ = 0, checked_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
