// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <cstring>

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "../core/options.hpp"
#include "../core/tuning.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// This is the one file where hvd reads the time or sleeps, so a simulator can replace it. Times are
// nanoseconds of the steady clock.
using time_point = std::int64_t;
constexpr time_point never = INT64_MAX;

inline time_point now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// A deadline from now on; 0: never.
inline time_point limit_of(time_span deadline) {
    return deadline.nanoseconds == 0 ? never : now() + deadline.nanoseconds;
}

// The other way round; 0 where there is no limit.
inline time_span span_until(time_point limit) {
    if (limit == never) return {};
    const std::int64_t left = limit - now();
    return time_span::of_nanoseconds(left > 1 ? left : 1);
}

inline void sleep_for(std::int64_t nanoseconds) {
    const timespec span{time_t(nanoseconds / 1'000'000'000), long(nanoseconds % 1'000'000'000)};
    nanosleep(&span, nullptr);
}

// The processors that some threads may run on.
class processor_set {
public:
    static processor_set of_this_thread() {
        processor_set set;
        cpu_set_t own;
        if (sched_getaffinity(0, sizeof own, &own) == 0) std::memcpy(set.words_, &own, sizeof own);
        return set;
    }

    void add(const processor_set& other) {
        for (std::size_t i = 0; i < words; ++i) words_[i] |= other.words_[i];
    }

    // Returns the number of all processors online if the set is empty.
    int count() const {
        int n = 0;
        for (const unsigned long word : words_) n += __builtin_popcountl(word);
        return n > 0 ? n : int(sysconf(_SC_NPROCESSORS_ONLN));
    }

private:
    static constexpr std::size_t words = sizeof(cpu_set_t) / sizeof(unsigned long);
    unsigned long words_[words] = {};
};

// The way a waiting rank spends its time. It spins briefly if every rank has a core, then yields
// the core at each look. After 20 milliseconds it sleeps between looks.
class backoff {
public:
    explicit backoff(bool may_spin) : spins_(may_spin ? tuning::spins : 0) {}

    // Returns true about once per millisecond of waiting, when it is time for the expensive checks.
    bool pause() {
        if (spins_ > 0) {
            --spins_;
            return false;
        }
        if (looks_ == 0) started_ = checked_ = now();
        ++looks_;
        if (asleep_) sleep_for(tuning::sleep_time);
        else sched_yield();
        if (!asleep_ && looks_ % tuning::looks_per_check != 0) return false;
        const time_point time = now();
        if (time - started_ > tuning::sleep_after) asleep_ = true;
        if (time - checked_ < tuning::check_interval) return false;
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
