// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "../../platform/thread.hpp"
#include "../stage_pool.hpp"

namespace hvd::inline v0::detail {

// The work of a stage of a worker, as it tells it to its dispatcher.
struct stage_report {
    std::int32_t stage = 0;
    std::uint32_t threads = 0;
    std::uint64_t queue = 0, ready = 0, making = 0, made = 0;
    double seconds = 0, thread_seconds = 0, busy = 0, without_room = 0, awaited = 0;
};

constexpr std::size_t most_reported_stages = 256;

inline void write_stages(std::vector<std::byte>& bytes,
                         const std::vector<data::stage_statistics>& stages) {
    for (const data::stage_statistics& s : stages) {
        const stage_report report{
            s.stage,   std::uint32_t(s.threads), s.queue, s.ready,        s.making, s.made,
            s.seconds, s.thread_seconds,         s.busy,  s.without_room, s.awaited};
        const auto* const from = reinterpret_cast<const std::byte*>(&report);
        bytes.insert(bytes.end(), from, from + sizeof report);
    }
}

// The work of all workers of a dispatcher, by stage. The counts of those that are gone stay.
class stage_totals {
public:
    // Takes what a worker has done so far. `before` is what it told last. False for bytes that no
    // worker writes.
    bool take(std::vector<stage_report>& before, std::span<const std::byte> bytes) {
        const std::size_t count = bytes.size() / sizeof(stage_report);
        if (count * sizeof(stage_report) != bytes.size() || count > most_reported_stages)
            return false;
        std::vector<stage_report> after(count);
        if (count > 0) std::memcpy(after.data(), bytes.data(), bytes.size());
        if (!std::all_of(after.begin(), after.end(), is_sane)) return false;
        const lock_guard held(mutex_);
        add(before, -1);
        add(after, 1);
        before = std::move(after);
        return true;
    }
    // The worker is gone.
    void forget(const std::vector<stage_report>& last) {
        const lock_guard held(mutex_);
        for (const stage_report& r : last) {
            data::stage_statistics& s = of(r.stage);
            s.threads -= r.threads;
            s.ready -= std::size_t(r.ready);
            s.making -= std::size_t(r.making);
        }
    }

    std::vector<data::stage_statistics> all() const {
        const lock_guard held(mutex_);
        return stages_;
    }

private:
    static bool is_sane(const stage_report& r) {
        for (const double time : {r.seconds, r.thread_seconds, r.busy, r.without_room, r.awaited})
            if (!(time >= -1 && time < 1e12)) return false;  // busy may be rounded below 0
        return true;
    }
    void add(const std::vector<stage_report>& reports, int sign) {
        for (const stage_report& r : reports) {
            data::stage_statistics& s = of(r.stage);
            const auto count = [sign](auto& total, auto part) {
                using total_type = std::remove_reference_t<decltype(total)>;
                total = sign > 0 ? total + total_type(part) : total - total_type(part);
            };
            s.queue = std::max(s.queue, std::size_t(r.queue));
            count(s.threads, r.threads);
            count(s.ready, r.ready);
            count(s.making, r.making);
            count(s.made, r.made);
            s.seconds = std::max(s.seconds, r.seconds);
            count(s.thread_seconds, r.thread_seconds);
            count(s.busy, r.busy);
            count(s.without_room, r.without_room);
            count(s.awaited, r.awaited);
        }
    }
    data::stage_statistics& of(int stage) {
        const auto at = std::lower_bound(stages_.begin(), stages_.end(), stage,
                                         [](const auto& s, int n) { return s.stage < n; });
        if (at != stages_.end() && at->stage == stage) return *at;
        return *stages_.insert(at, data::stage_statistics{.stage = stage});
    }

    mutable mutex mutex_;
    std::vector<data::stage_statistics> stages_;
};

}  // namespace hvd::inline v0::detail
