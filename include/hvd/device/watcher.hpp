// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <vector>

#include "../core/lean/atomic.hpp"
#include "../core/tuning.hpp"
#include "../execution/completion_callback.hpp"
#include "../platform/clock.hpp"
#include "../platform/cuda_memory.hpp"
#include "../platform/thread.hpp"
#include "../protocol/failure_detector.hpp"

namespace hvd::inline v0::detail {

// The session of the callback that runs on this thread, or null.
inline constinit thread_local const void* session_of_callback = nullptr;

// A device call with a callback. Its request and the watcher share it.
class watched_call {
public:
    explicit watched_call(cuda_event&& end) : done(std::move(end)) {}

    const cuda_event done;

    template <class F>
    void then(F f, int rank) {
        if (then_.give(std::move(f), failure_) == completion_callback::outcome::is_second)
            throw usage_error(rank, "hvd: this request has a callback of .then() already");
    }

    // Runs the callback, or waits for another thread that does. Returns the failure of the call,
    // which is that of the first who ends it.
    std::exception_ptr end(const void* session, std::exception_ptr failure) noexcept {
        const lock_guard lock(mutex_);
        if (!std::exchange(is_over_, true)) {
            failure_ = std::move(failure);
            then_.complete(failure_, [session](auto run) {
                const void* const outer = std::exchange(session_of_callback, session);
                run();
                session_of_callback = outer;
            });
        }
        return failure_;
    }

private:
    mutex mutex_;
    bool is_over_ = false;
    std::exception_ptr failure_;
    completion_callback then_;
};

// Watches work that only streams wait for. If it is late or has failed, or if a failure detector
// tells that the ranks wait in vain, the session is given up, which ends the work, so that the
// streams go on. It also watches calls with a callback. A thread does it, from the first work or
// detector on. It sleeps while there are none.
template <class Session>
class device_watcher {
public:
    explicit device_watcher(Session& session) : session_(session) {}
    device_watcher(const device_watcher&) = delete;
    device_watcher& operator=(const device_watcher&) = delete;
    ~device_watcher() { stop(); }

    // Watches until the event is reached. The call is open until then.
    void add(cuda_event&& done, open_call&& open, const char* label, time_point limit) {
        message name(label);
        const lock_guard lock(mutex_);
        start(label);
        work_.push_back({std::move(done), std::move(open), std::move(name), limit});
        changed_.notify_all();
    }

    // Watches a call that gets a callback. If this throws, the event is still the caller's.
    std::shared_ptr<watched_call> add(cuda_event& done, const char* label, time_point limit) {
        message name(label);
        const lock_guard lock(mutex_);
        start(label);
        work_.reserve(work_.size() + 1);
        const auto call = std::make_shared<watched_call>(std::move(done));
        work_.push_back({{}, {}, std::move(name), limit, call});
        changed_.notify_all();
        return call;
    }
    // Keeps the call open until it is over.
    void keep_open(const watched_call& call, open_call&& open) {
        const lock_guard lock(mutex_);
        for (watched& w : work_)
            if (w.call.get() == &call) w.open = std::move(open);
    }

    // Remembers an event for is_idle(), without watching it.
    void keep(cuda_event&& done) {
        const lock_guard lock(mutex_);
        const auto is_under_way = [this](const cuda_event& e) { return !has_reached(e); };
        kept_.erase(kept_.begin(), std::find_if(kept_.begin(), kept_.end(), is_under_way));
        kept_.push_back(std::move(done));
    }

    // True if all events are reached, or the session was given up.
    bool is_idle() {
        const lock_guard lock(mutex_);
        const auto is_done = [this](const watched& w) { return has_reached(w.event()); };
        std::erase_if(kept_, [this](const cuda_event& e) { return has_reached(e); });
        return session_.broken() ||
               (kept_.empty() && std::all_of(work_.begin(), work_.end(), is_done));
    }

    // Listens to this detector, also while nothing is watched. Without one it stops to listen.
    void listen_to(shared<failure_detector> detector) {
        const lock_guard lock(mutex_);
        detector_ = std::move(detector);
        if (!detector_) return;
        start("failure detector");
        changed_.notify_all();
    }

    // True from the moment when work is late, or the detector has told of an end. The thread that
    // is inside the session gives it up, or else the watcher does.
    bool is_overdue() const noexcept { return overdue_.load(); }
    // True if it was the detector.
    bool has_detected() const noexcept { return is_overdue() && has_detected_; }

    void stop() noexcept {
        {
            const lock_guard lock(mutex_);
            ending_ = true;
        }
        changed_.notify_all();
        thread_.join();
        for (const watched& w : work_)
            if (w.call) w.call->end(&session_, session_.failure_of(w.label.c_str(), w.limit));
        work_.clear();
        kept_.clear();
        detector_ = {};
        open_calls::of_this_thread().free_if_none();
    }

private:
    struct watched {
        cuda_event done;
        open_call open;
        message label;
        time_point limit;
        std::shared_ptr<watched_call> call = {};  // if it has a callback: it has the event
        bool is_over = false;

        const cuda_event& event() const { return call ? call->done : done; }
    };

    bool has_reached(const cuda_event& done) const { return done.reached(session_.rank()); }

    void start(const char* label) {
        if (!thread_) thread_ = thread([this] { run(); });
        if (!thread_)
            throw usage_error(session_.rank(), text("hvd: ", label, " on rank ", session_.rank(),
                                                    ": no thread to watch a stream"));
    }

    void run() {
        is_hvd_thread = true;
        cudaSetDevice(session_.device());
        while (wait_for_work()) {
            sleep_for(tuning::check_interval);
            look();
        }
    }

    // Returns false at the end.
    bool wait_for_work() {
        const lock_guard lock(mutex_);
        while (work_.empty() && !detector_ && !ending_) changed_.wait(mutex_);
        return !ending_;
    }

    void look() noexcept {
        try {
            drop_reached();
            end_calls();
            ask_detector();
            if (is_overdue()) session_.expire(late_.c_str());
            if (session_.is_late(never)) session_.expire("a call that a stream waits for");
            session_.look_from_outside();
        } catch (...) {
            session_.give_up(what_of(std::current_exception()));
            end_all(std::current_exception());
        }
    }

    // Callbacks run without the lock.
    void end_calls() {
        for (watched w; take_call([](const watched& c) { return c.is_over; }, w);)
            w.call->end(&session_, session_.failure_of(w.label.c_str(), w.limit));
    }
    void end_all(const std::exception_ptr& failure) noexcept {
        for (watched w; take_call([](const watched&) { return true; }, w);)
            w.call->end(&session_, failure);
        const lock_guard lock(mutex_);
        std::erase_if(work_, [](const watched& w) { return !w.call; });
        detector_ = {};
    }
    // Takes the first call with a callback that `is_wanted`.
    template <class F>
    bool take_call(F is_wanted, watched& taken) {
        const lock_guard lock(mutex_);
        const auto at = std::find_if(work_.begin(), work_.end(),
                                     [&](const watched& w) { return w.call && is_wanted(w); });
        if (at == work_.end()) return false;
        taken = std::move(*at);
        work_.erase(at);
        return true;
    }

    void drop_reached() {
        const lock_guard lock(mutex_);
        time_point first = never;
        for (const watched& w : work_) first = std::min(first, w.limit);
        typename std::remove_reference_t<decltype(session_.queries())>::query query(
            session_.queries(), "a call that a stream waits for", first);
        std::erase_if(work_, [&](watched& w) {
            const bool is_over = query.ask([&] { return has_reached(w.event()); });
            w.is_over = is_over;
            return is_over && !w.call;
        });
        for (watched& w : work_) {
            if (w.is_over || now() <= w.limit) continue;
            late_ = std::move(w.label);
            return overdue_.store(true);
        }
    }

    void ask_detector() {
        const lock_guard lock(mutex_);
        if (is_overdue() || !detector_ || !detector_->has_detected()) return;
        late_ = message("a call");
        has_detected_ = true;
        overdue_.store(true);
    }

    Session& session_;
    mutex mutex_;  // guards the next four
    std::vector<watched> work_;
    std::vector<cuda_event> kept_;
    shared<failure_detector> detector_;
    bool ending_ = false;
    condition changed_;
    message late_;  // the label of the late work; not changed once overdue
    bool has_detected_ = false;
    atomic<bool> overdue_ = false;
    thread thread_;  // last: it uses all others
};

}  // namespace hvd::inline v0::detail
