// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>

#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "../core/lean/atomic.hpp"
#include "../core/options.hpp"
#include "../core/tuning.hpp"
#include "linux.hpp"

namespace hvd::inline v0::detail {

// hvd reads the time here alone, and sleeps here and in futex.hpp, so a simulator can replace both.
// Times are nanoseconds of the steady clock.
using time_point = std::int64_t;
constexpr time_point never = INT64_MAX;

inline time_point now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// Tells the time from ticks that come at a constant rate. A pair of the two clocks corrects it once
// for each window of ticks, since the system adjusts the rate of its clock. It never goes back.
class tick_clock {
public:
    static constexpr std::uint64_t window = 1U << 21;  // half a millisecond at 4 GHz

    // The time at a tick; 0 if the clock has to be corrected first.
    time_point at(std::uint64_t tick) const {
        const unsigned version = version_.load();
        const std::uint64_t since = tick - tick_.load();
        const time_point time = time_.load() + time_point(since * rate_.load() >> 32);
        const bool holds = version % 2 == 0 && version == version_.load_relaxed();
        return holds && since < window ? time : 0;
    }

    // Both clocks at one moment. Returns the time, of this clock where it is ahead.
    [[gnu::cold]] time_point correct(std::uint64_t tick, time_point time) {
        const unsigned version = version_.load();
        if (version % 2 != 0 || !version_.compare_exchange(version, version + 1)) return time;
        const std::uint64_t ticks = tick - measured_tick_;
        if (measured_tick_ == 0) {
            measure(tick, time);
        } else if (ticks >= window / 2) {
            double rate = double(time - measured_time_) / double(ticks);
            if (rate > longest_tick) rate = longest_tick;             // ticks came to a halt
            const time_point end = time + time_point(rate * window);  // the clocks meet there
            const time_point reached = time_.load() + time_point(window * rate_.load() >> 32);
            measure(tick, time);
            if (time < reached) time = reached;
            tick_.store(tick);
            time_.store(time);
            rate_.store(time < end ? (std::uint64_t(end - time) << 32) / window : 0);
        }
        version_.store(version + 2);
        return time;
    }

private:
    static constexpr double longest_tick = 4;  // nanoseconds

    void measure(std::uint64_t tick, time_point time) {
        measured_tick_ = tick;
        measured_time_ = time;
    }

    atomic<unsigned> version_{0};  // odd while the clock is corrected
    atomic<std::uint64_t> tick_{0};
    atomic<time_point> time_{0};
    atomic<std::uint64_t> rate_{0};  // nanoseconds for 2^32 ticks
    std::uint64_t measured_tick_ = 0;
    time_point measured_time_ = 0;
};

#if HVD_LINUX && defined(__x86_64__)
inline tick_clock clock_of_process;

// The kernel itself takes the time from the ticks if they are the same on all processors.
[[gnu::cold]] inline bool ticks_are_steady() {
    static const bool steady = [] {
        const int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                              O_RDONLY | O_CLOEXEC);
        if (file < 0) return false;
        char name[4] = {};
        const bool is_tsc = read(file, name, sizeof name) == sizeof name && name[0] == 't' &&
                            name[1] == 's' && name[2] == 'c' && name[3] == '\n';
        close(file);
        return is_tsc;
    }();
    return steady;
}

[[gnu::cold, gnu::noinline]] inline time_point corrected_now() {
    constexpr std::uint64_t longest_read = 1024;  // the pair is wrong by half of it at most
    const std::uint64_t before = __builtin_ia32_rdtsc();
    const time_point time = now();
    const std::uint64_t took = __builtin_ia32_rdtsc() - before;
    if (took > longest_read || !ticks_are_steady()) return time;
    return clock_of_process.correct(before + took / 2, time);
}
#endif

// The time of an observed event: that of now(), within half a microsecond, in a third of the time.
inline time_point quick_now() {
#if HVD_LINUX && defined(__x86_64__)
    const time_point time = clock_of_process.at(__builtin_ia32_rdtsc());
    return time != 0 ? time : corrected_now();
#else
    return now();
#endif
}

// A timeout from now on. A wrong one is none yet: the ranks first have to come together so that it
// can be refused on all of them.
inline time_point limit_of(time_limit timeout) {
    const std::int64_t patience = timeout.patience();
    return patience == 0 ? never : now() + patience;
}

// The other way round; not given where there is no limit.
inline time_limit limit_until(time_point limit) {
    if (limit == never) return {};
    const std::int64_t left = limit - now();
    return time_span::of_nanoseconds(left > 1 ? left : 1);
}

inline void sleep_for(std::int64_t nanoseconds) {
    const timespec span{time_t(nanoseconds / 1'000'000'000), long(nanoseconds % 1'000'000'000)};
    nanosleep(&span, nullptr);
}

// The time for which this thread has watched something. A process that gets no processor for
// seconds sees nothing meanwhile, so that a gap between two looks counts as a short one.
class watched_time {
public:
    static constexpr std::int64_t longest_gap = 200 * tuning::millisecond;

    // The sum until now, which is told at each look.
    std::int64_t look(time_point time) {
        const std::int64_t gap = last_ == 0 ? 0 : time - last_;
        last_ = time;
        return sum_ += gap < longest_gap ? gap : longest_gap;
    }
    std::int64_t look() { return look(now()); }

private:
    time_point last_ = 0;
    std::int64_t sum_ = 0;
};

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
    time_point begun = 0;  // when it has first looked at the clock; 0: not yet

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
        if (begun == 0) begun = checked_ = yields_from_ = time;
        if (spins_) {
            if (time - begun < tuning::spin_time) return false;
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
        if (time < others_.until || time - begun > tuning::sleep_after)
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
    time_point yields_from_ = 0, checked_ = 0;
};

}  // namespace hvd::inline v0::detail
