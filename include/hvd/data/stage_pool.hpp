// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../core/lean/text.hpp"
#include "../platform/clock.hpp"
#include "../platform/thread.hpp"
#include "../protocol/agreement.hpp"

namespace hvd::inline v0::data {

/// Options of a `data::map` that has threads of its own.
struct map_options {
    std::size_t threads = 0;  ///< with 0 those that make the batches call it
    /// The most samples of a batch that are made, or in the making, before they are taken. 0: two
    /// for each thread.
    std::size_t queue = 0;
};

/// The work of a stage that has threads of its own, since its first batch.
struct stage_statistics {
    int stage = 0;  ///< its place in the pipeline
    std::size_t threads = 0;
    std::size_t queue = 0;      ///< the most samples of a batch before they are taken
    std::size_t ready = 0;      ///< samples that were made and not taken yet, of all batches
    std::size_t making = 0;     ///< samples in the making
    std::uint64_t made = 0;     ///< samples
    double seconds = 0;         ///< since the first batch
    double thread_seconds = 0;  ///< of all its threads together
    double busy = 0;            ///< seconds in which its threads made samples, all together
    double without_room = 0;    ///< seconds of its threads in which the queue was full
    double awaited = 0;         ///< seconds in which threads behind it waited for its samples

    double samples_per_second() const { return seconds > 0 ? double(made) / seconds : 0; }
    /// The share of its threads' time, from 0 to 1, in which they made samples. Near 1, more
    /// threads of this stage would help.
    double busy_share() const { return share(busy); }
    /// The share of their time in which they waited for the stages behind.
    double waiting_share() const { return share(without_room); }

    /// One line for people.
    std::string text() const {
        return std::string(std::string_view(hvd::detail::text(
            "stage ", stage, " (map): ", threads, " threads, busy in ", percent(busy_share()),
            " %, without room in ", percent(waiting_share()), " %, awaited for ",
            double(std::uint64_t(10 * awaited + 0.5)) / 10, " s; ", made, " samples, ", ready,
            " ready, ", making, " in the making, at most ", queue, " of a batch")));
    }
    /// A JSON object of one line.
    std::string json() const {
        return std::string(std::string_view(hvd::detail::text(
            "{\"stage\": ", stage, ", \"threads\": ", threads, ", \"queue\": ", queue,
            ", \"ready\": ", ready, ", \"making\": ", making, ", \"made\": ", made,
            ", \"seconds\": ", seconds, ", \"thread_seconds\": ", thread_seconds,
            ", \"busy\": ", busy, ", \"without_room\": ", without_room, ", \"awaited\": ", awaited,
            ", \"samples_per_second\": ", samples_per_second(), "}")));
    }

private:
    double share(double time) const {
        const double of_all = thread_seconds > 0 ? time / thread_seconds : 0;
        return of_all < 0 ? 0 : of_all > 1 ? 1 : of_all;
    }
    static std::uint64_t percent(double share) { return std::uint64_t(100 * share + 0.5); }
};

}  // namespace hvd::inline v0::data

namespace hvd::inline v0::detail {

// The samples of one batch on their way through a stage with threads. They are taken by their
// place in the batch, each once, and nearly in order.
class stage_run {
public:
    stage_run(std::uint64_t count, std::size_t queue)
        : count_(count), states_(queue < count ? queue : std::size_t(count)) {}
    stage_run(const stage_run&) = delete;
    stage_run& operator=(const stage_run&) = delete;
    virtual ~stage_run() = default;

    std::uint64_t count() const { return count_; }
    std::size_t room() const { return states_.size(); }

    // Makes a sample and keeps it. A thread of the stage calls it.
    virtual void make(std::uint64_t place) = 0;

private:
    friend class stage_pool;
    enum class state : std::uint8_t { empty, ready, taken };

    bool is_over() const { return begun_ == count_; }
    bool has_room() const { return begun_ - untaken_ < states_.size(); }
    state& at(std::uint64_t place) { return states_[place % states_.size()]; }
    // An earlier sample may be where this one will be.
    bool is_ready(std::uint64_t place) {
        return place - untaken_ < states_.size() && at(place) == state::ready;
    }
    void mark_taken(std::uint64_t place) {
        at(place) = state::taken;
        for (; untaken_ < begun_ && at(untaken_) == state::taken; ++untaken_)
            at(untaken_) = state::empty;
    }

    std::uint64_t count_;
    std::uint64_t begun_ = 0, untaken_ = 0;  // all before untaken_ were taken
    std::size_t under_way_ = 0;
    std::vector<state> states_;  // that of place n is n % room
};

// The threads of one stage, for all copies of its pipeline. They start with the first batch. Older
// batches come first.
//
// A thread may wait for samples of a stage before it, never for one behind: so the oldest sample
// that is under way always goes on.
class stage_pool {
public:
    stage_pool(int stage, data::map_options options) : stage_(stage), options_(options) {
        if (options_.queue == 0) options_.queue = 2 * options_.threads;
    }
    stage_pool(const stage_pool&) = delete;
    stage_pool& operator=(const stage_pool&) = delete;
    ~stage_pool() { stop(); }

    bool has_threads() const { return options_.threads > 0; }
    std::size_t queue() const { return options_.queue; }

    void open(stage_run& run) {
        {
            const lock_guard held(mutex_);
            if (threads_.empty()) start();
            runs_.push_back(&run);
        }
        room_.notify_all();
    }
    // Afterwards no thread is in the run.
    void close(stage_run& run) {
        const lock_guard held(mutex_);
        run.begun_ = run.count_;
        while (run.under_way_ > 0) made_.wait(mutex_);
        // Nobody takes what is ready of a batch that has failed.
        for (const stage_run::state of_place : run.states_)
            if (of_place == stage_run::state::ready) --ready_;
        std::erase(runs_, &run);
    }

    // Waits for a sample, and calls `move_out` for it. Returns the time of waiting.
    template <class MoveOut>
    std::int64_t take(stage_run& run, std::uint64_t place, const MoveOut& move_out) {
        const time_point since = now();
        std::int64_t waited = 0;
        {
            const lock_guard held(mutex_);
            while (!run.is_ready(place)) made_.wait(mutex_);
            waited = now() - since;
            awaited_ += waited;
            move_out();
            run.mark_taken(place);
            --ready_;
        }
        room_.notify_all();
        return waited;
    }

    // A thread did not make samples in this time: it waited for those of a stage before.
    void was_idle(std::int64_t time) {
        const lock_guard held(mutex_);
        busy_ -= time;
    }

    data::stage_statistics statistics() {
        const lock_guard held(mutex_);
        data::stage_statistics s;
        s.stage = stage_;
        s.threads = options_.threads;
        s.queue = options_.queue;
        s.ready = ready_;
        s.making = making_;
        s.made = samples_;
        s.seconds = began_ == 0 ? 0 : double(now() - began_) / 1e9;
        s.thread_seconds = s.seconds * double(s.threads);
        s.busy = double(busy_) / 1e9;
        s.without_room = double(without_room_) / 1e9;
        s.awaited = double(awaited_) / 1e9;
        return s;
    }

private:
    void start() {
        began_ = now();
        threads_.reserve(options_.threads);
        for (std::size_t i = 0; i < options_.threads; ++i) {
            threads_.emplace_back([this] { work(); });
            if (threads_.back()) continue;
            threads_.pop_back();
            if (threads_.empty())
                refuse(-1, "no thread of ", options_.threads, " for stage ", stage_);
            return;  // it works with fewer
        }
    }
    void stop() {
        {
            const lock_guard held(mutex_);
            stopping_ = true;
        }
        room_.notify_all();
    }

    void work() {
        mutex_.lock();
        while (stage_run* const run = next()) {
            const std::uint64_t place = run->begun_++;
            ++run->under_way_;
            ++making_;
            mutex_.unlock();
            const time_point since = now();
            run->make(place);
            const std::int64_t time = now() - since;
            mutex_.lock();
            busy_ += time;
            ++samples_;
            ++ready_;
            --making_;
            --run->under_way_;
            run->at(place) = stage_run::state::ready;
            made_.notify_all();
        }
        mutex_.unlock();
    }
    // Waits for the run of the next sample. None at the end.
    stage_run* next() {
        while (!stopping_) {
            bool has_more = false;
            for (stage_run* const run : runs_) {
                if (run->is_over()) continue;
                if (run->has_room()) return run;
                has_more = true;
            }
            const time_point since = now();
            room_.wait(mutex_);
            if (has_more) without_room_ += now() - since;
        }
        return nullptr;
    }

    const int stage_;
    data::map_options options_;
    mutex mutex_;
    condition room_, made_;
    std::vector<stage_run*> runs_;  // the oldest first
    bool stopping_ = false;
    std::size_t ready_ = 0, making_ = 0;
    std::uint64_t samples_ = 0;
    time_point began_ = 0;
    std::int64_t busy_ = 0, without_room_ = 0, awaited_ = 0;  // nanoseconds
    // the last member, so that they are joined before the others are destroyed
    std::vector<thread> threads_;
};

}  // namespace hvd::inline v0::detail
