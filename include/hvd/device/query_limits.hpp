// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../core/lean/atomic.hpp"
#include "../core/tuning.hpp"
#include "../platform/clock.hpp"
#include "../platform/thread.hpp"

namespace hvd::inline v0::detail {

// Limits of calls whose threads ask CUDA if the call is over. CUDA may keep a thread that asks for
// as long as another thread of the process waits for the device (frees memory, or loads a kernel),
// and so for a rank that never comes. Then nobody would look at the limit, or at another reason to
// end the call. A thread that asks CUDA for nothing does it, from the first query on.
class query_limits {
public:
    // `end_if_late(self, label, limit)` ends the calls under way, if the limit is over or they are
    // to end for another reason. Any thread may call it.
    using action = void (*)(void* self, const char* label, time_point limit) noexcept;
    query_limits(action end_if_late, void* self) : end_if_late_(end_if_late), self_(self) {}
    query_limits(const query_limits&) = delete;
    query_limits& operator=(const query_limits&) = delete;
    ~query_limits() { stop(); }

    // Held by a thread that asks, again and again.
    class query {
    public:
        // Where calls have no limit and no other end, nothing is looked at.
        query(query_limits& all, const char* label, time_point limit, bool has_other_end = false)
            : all_(limit != never || has_other_end ? &all : nullptr), label_(label), limit_(limit) {
            if (all_ != nullptr) all_->add(this);
        }
        query(const query&) = delete;
        query& operator=(const query&) = delete;
        ~query() {
            if (all_ != nullptr) all_->remove(this);
        }

        template <class F>
        auto ask(F f) {
            const asking guard{since_};
            return f();
        }

    private:
        friend class query_limits;

        struct asking {
            atomic<time_point>& since;
            explicit asking(atomic<time_point>& when) : since(when) { since.store(now()); }
            ~asking() { since.store(never); }
        };

        // True if CUDA keeps the thread: several looks find it in the same question. A process that
        // was stopped goes on with one look.
        bool is_stuck() {
            const time_point since = since_.load();
            looks_ = since != never && since == seen_ ? looks_ + 1 : 0;
            seen_ = since;
            return looks_ >= looks_to_be_stuck;
        }

        query_limits* const all_;
        const char* const label_;
        const time_point limit_;
        time_point seen_ = never;  // at the last look
        int looks_ = 0;            // since then with the same question
        atomic<time_point> since_{never};
    };

    void stop() noexcept {
        {
            const lock_guard lock(mutex_);
            ending_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

private:
    // No question takes so long, unless CUDA keeps the thread.
    static constexpr int looks_to_be_stuck = 5;
    // The thread looks so often, and for so long after the last query.
    static constexpr std::int64_t interval = 20 * tuning::millisecond, linger = tuning::second;

    // Without a thread or memory those who ask look at the limits, as long as CUDA answers.
    void add(query* q) noexcept try {
        const lock_guard lock(mutex_);
        queries_.push_back(q);
        last_ = now();
        if (!thread_) thread_ = thread([this] { run(); });
        if (std::exchange(sleeps_, false)) changed_.notify_all();
    } catch (const std::bad_alloc&) {
    }
    void remove(query* q) noexcept {
        const lock_guard lock(mutex_);
        std::erase(queries_, q);
    }

    void run() {
        is_hvd_thread = true;
        while (wait_for_queries()) {
            sleep_for(interval);
            look();
        }
    }

    // Returns false at the end.
    bool wait_for_queries() {
        const lock_guard lock(mutex_);
        while (queries_.empty() && now() > last_ + linger && !ending_) {
            sleeps_ = true;
            changed_.wait(mutex_);
        }
        return !ending_;
    }

    void look() noexcept {
        const char* label = nullptr;
        time_point limit = never;
        {
            const lock_guard lock(mutex_);
            for (query* q : queries_) {
                if (!q->is_stuck() || (label != nullptr && q->limit_ > limit)) continue;
                label = q->label_;
                limit = q->limit_;
            }
        }
        if (label != nullptr) end_if_late_(self_, label, limit);
    }

    const action end_if_late_;
    void* const self_;
    mutex mutex_;  // guards the next four
    std::vector<query*> queries_;
    time_point last_ = 0;
    bool sleeps_ = false, ending_ = false;
    condition changed_;
    thread thread_;  // last: it uses all others
};

}  // namespace hvd::inline v0::detail
