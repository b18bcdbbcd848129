// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>

#include "../core/lean/atomic.hpp"
#include "../core/message_sink.hpp"
#include "../core/units.hpp"
#include "../observe/lateness.hpp"
#include "../platform/clock.hpp"
#include "../protocol/call_record.hpp"
#include "../transport/operation.hpp"
#include "../transport/transport.hpp"

namespace hvd::inline v0::detail {

// Tells the error sink of a wrong HVD_WAITING_NOTICE, once in a process. Every communicator of
// every rank reads it.
[[gnu::cold]] inline void tell_wrong_waiting_notice(const char* variable) {
    static atomic<bool> told{false};
    if (told.exchange(true)) return;
    write_line(text("hvd: HVD_WAITING_NOTICE is '", variable,
                    "'; it takes a time, as 30, 30s or 500ms, or forever. hvd goes on with ",
                    tuning::waiting_notice / tuning::second, " s"));
}

// Returns the time after which a rank says that it waits, 0 for never: the option, the environment
// variable, or the default. A wrong variable is no reason to stop a program.
[[gnu::cold]] inline std::int64_t waiting_notice_of(const communicator_options& options) {
    if (options.waiting_notice.is_given()) return options.waiting_notice.time().nanoseconds;
    const char* const variable = std::getenv("HVD_WAITING_NOTICE");
    if (variable == nullptr || *variable == 0) return tuning::waiting_notice;
    time_limit limit;
    if (read_limit(variable, limit)) return limit.time().nanoseconds;
    tell_wrong_waiting_notice(variable);
    return tuning::waiting_notice;
}

// Says once per call, to the error sink, that a rank has waited long in one of its rounds.
class long_wait {
public:
    bool said = false;               // in the present call
    const lateness* late = nullptr;  // who has come last before
    bool expired = false;            // the call has given up since its limit has passed
    other_processes others;

    long_wait(const communicator_options& options, call_record& calls)
        : after_(waiting_notice_of(options)), calls_(calls) {}

    // From now on waits are told after another time, those with a limit too. `where` says in what
    // this rank waits; it is asked when a wait is told.
    void take(std::int64_t after, message (*where)(void* self), void* self) noexcept {
        after_ = after;
        where_ = where;
        self_ = self;
    }
    // True if a wait is told although it has a limit.
    bool tells_all() const noexcept { return where_ != nullptr; }

    void begin_round() noexcept { since_ = 0; }

    // Called about once in a millisecond of a wait, which began at that time.
    void record(transport& t, time_point time, time_point since) {
        call_record& c = calls_;
        if (c.open_stamp == nullptr) {
            c.open_stamp = &c.stamps[c.stamps_written++ % call_record::most_stamps];
            *c.open_stamp = {(c.moments + 1) / 2, since, 0};
        }
        __atomic_store_n(&c.looked, time, __ATOMIC_RELAXED);
        if (time - since >= tuning::record_missing_after && c.waits != c.begun()) record_missing(t);
    }

    // The limit of the call has passed. It returns if the ranks have come meanwhile.
    [[gnu::cold]] void expire(transport& t) {
        expired = true;
        t.fail(verdict::expired);
        expired = false;
    }

    // Called about once in a millisecond of waiting.
    void look(transport& t, const operation& op, time_point time) {
        if (after_ == 0 || said) return;
        if (since_ == 0) since_ = time;
        if (time - since_ < after_) return;
        try {
            said = say(t, op);
        } catch (...) {  // no memory for a line is no reason to end the wait
            said = true;
        }
    }

private:
    [[gnu::cold, gnu::noinline]] void record_missing(transport& t) {
        try {
            calls_.note_missing(t.missing());
        } catch (...) {  // without memory the record lacks them
        }
    }

    // Returns false if the ranks have come meanwhile.
    [[gnu::cold]] bool say(transport& t, const operation& op) const {
        const std::vector<int> missing = t.missing();
        if (missing.empty()) return false;
        message ranks(missing.size() == 1 ? "rank " : "ranks ");
        for (std::size_t i = 0; i < missing.size(); ++i)
            ranks += text(i == 0 ? "" : ", ", missing[i]);
        write_line(text("hvd: rank ", t.rank(), " has waited ",
                        double(after_) / double(tuning::second), " s in ",
                        where_ != nullptr ? where_(self_) : op.entry.label(), " for ", ranks,
                        late != nullptr ? late->remark() : message()));
        return true;
    }

    std::int64_t after_;  // nanoseconds; 0: never
    call_record& calls_;
    time_point since_ = 0;
    message (*where_)(void* self) = nullptr;
    void* self_ = nullptr;
};

// Other reasons than its own limit for which a call under way gives its communicator up.
struct stop_signs {
    atomic<time_point> limit{never};
    atomic<bool> aborted{false};  // written after the text
    message text_of_abort;
};

// abort() ends a call that waits.
[[gnu::cold, noreturn]] inline void throw_aborted(int rank, std::string_view call,
                                                  const stop_signs& stop) {
    throw peer_error(rank, text("hvd: ", call, " on rank ", rank, ": ", stop.text_of_abort),
                     {rank});
}

// Waits until the transport's round is ready, which it is not yet. It gives up when a peer that is
// needed is gone, after `limit`, or when it is stopped. Without a limit a long wait is told.
inline void wait_ready(transport& t, const operation& op, time_point limit, const stop_signs& stop,
                       long_wait& notice) {
    notice.begin_round();
    backoff wait(t.processors_each >= op.threads, notice.others);
    const auto sleep = [&t](std::int64_t nanoseconds) { return t.sleep(nanoseconds); };
    bool asked = false;
    while (!t.ready()) {
        if (!wait.pause(sleep)) continue;
        const time_point time = now();
        asked = true;
        notice.record(t, time, wait.begun);
        if (stop.aborted.load()) throw_aborted(t.rank(), op.entry.label(), stop);
        if (t.hopeless()) t.fail(verdict::hopeless);
        if (time > limit || time > stop.limit.load_relaxed()) notice.expire(t);
        if (limit == never || notice.tells_all()) notice.look(t, op, time);
    }
    if (asked) [[unlikely]]
        t.forget_processes();
}

}  // namespace hvd::inline v0::detail
