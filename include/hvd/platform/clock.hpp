// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "../core/options.hpp"
#include "../core/tuning.hpp"
#include "linux.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// hvd reads the time here alone, and sleeps here and in futex.hpp, so a simulator can replace both.
// Times are nanoseconds of the steady clock.
using time_point = std::int64_t;
constexpr time_point never = INT64_MAX;

inline time_point now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// A deadline from now on; 0: never. A negative one is none yet either: the ranks first have to come
// together so that it can be refused on all of them.
inline time_point limit_of(time_span deadline) {
    return deadline.nanoseconds <= 0 ? never : now() + deadline.nanoseconds;
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
        find_processors(set.words_, sizeof set.words_);
        return set;
    }

    // The one processor `cpu`, which this set has.
    processor_set only(int cpu) const {
        processor_set one;
        one.words_[std::size_t(cpu) / bits] = 1UL << (std::size_t(cpu) % bits);
        return one;
    }
    bool has(int cpu) const {
        return cpu >= 0 && std::size_t(cpu) < words * bits &&
               (words_[std::size_t(cpu) / bits] >> (std::size_t(cpu) % bits) & 1) != 0;
    }
    // Keeps this thread on these processors; false where the system does not.
    bool keep_this_thread() const { return keep_to_processors(words_, sizeof words_); }

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
    static constexpr std::size_t bits = 8 * sizeof(unsigned long), words = 1024 / bits;
    unsigned long words_[words] = {};
};

// How the sleep of a waiting rank ended. After `not_begun` it has to look again and again, since
// nobody would wake it.
enum class sleep_end { not_begun, over, peer_left };

// Until when processes of others are expected to want this thread's processor. One that works for a
// moment is expected to stay for a short time, and one that comes back again and again for longer.
class other_processes {
public:
    void came(time_point time) {
        const bool again = time - until < 2 * stay_;
        stay_ = again ? 2 * stay_ : tuning::others_stay;
        if (stay_ > tuning::others_stay_longest) stay_ = tuning::others_stay_longest;
        until = time + stay_;
    }

    time_point until = 0;

private:
    std::int64_t stay_ = 0;
};

// The way a waiting thread spends its time between its looks.
//
// It spins for a while if it has a processor for itself. Then it yields the processor at each look,
// which costs little while nobody else wants it. A process of somebody else that wants it keeps it
// for milliseconds, so after one such yield, and after some time, the thread sleeps until it is
// woken. Where nobody can wake it, it sleeps for moments between its looks while others are there,
// since each yield would wait for them, and after 20 milliseconds; otherwise it goes on yielding.
class backoff {
public:
    explicit backoff(bool may_spin) : backoff(may_spin, own_others_) {}
    // `others` is kept from one wait to the next: while they are there, a yield takes long.
    backoff(bool may_spin, other_processes& others)
        : others_(others),
          long_yield_(may_spin ? tuning::long_yield : tuning::long_yield_crowded),
          spins_(may_spin) {}
    backoff(const backoff&) = delete;
    backoff& operator=(const backoff&) = delete;

    // Returns true about once per millisecond of waiting, when it is time for the expensive checks.
    bool pause() {
        return pause([](std::int64_t) { return sleep_end::not_begun; });
    }

    // The same with a way to sleep until the thread is woken, or some nanoseconds have passed.
    template <class Sleep>
    bool pause(Sleep sleep) {
        if (spins_ && ++looks_ % tuning::looks_per_time != 0) return false;
        const time_point time = now();
        if (started_ == 0) started_ = checked_ = yields_from_ = time;
        if (spins_) {
            if (time - started_ < tuning::spin_time) return false;
            spins_ = false;
            yields_from_ = time;
        }
        if (time < others_.until || time - yields_from_ > tuning::yield_time) {
            const sleep_end end = sleep(tuning::check_interval);
            if (end == sleep_end::peer_left) return true;
            if (end == sleep_end::not_begun) yield(time);
        } else {
            yield(time);
        }
        const time_point after = now();
        if (after - checked_ < tuning::check_interval) return false;
        checked_ = after;
        return true;
    }

private:
    void yield(time_point time) {
        if (time < others_.until || time - started_ > tuning::sleep_after)
            return sleep_for(tuning::sleep_time);
        sched_yield();
        const time_point after = now();
        if (after - time > long_yield_) others_.came(after);
    }

    other_processes own_others_;
    other_processes& others_;
    const std::int64_t long_yield_;
    bool spins_;
    unsigned looks_ = 0;
    time_point started_ = 0, yields_from_ = 0, checked_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
