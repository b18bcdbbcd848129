// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <signal.h>

#include <functional>

#include "../../core/message_sink.hpp"
#include "../../platform/linux.hpp"
#include "../../platform/thread.hpp"
#include "job_lock.hpp"
#include "kept_file.hpp"

namespace hvd::inline v0 {
namespace elastic {

/// Options of `state::persist_in`.
struct persist_options {
    std::int64_t every = 1;  ///< every n-th step is written, or the next commit after it
};

/// The steps of an elastic state that are in a file.
struct persisted_steps {
    std::int64_t step = -1;  ///< the last one that this process has written or read; -1: none
    std::string error = {};  ///< why the last attempt failed, or empty
};

}  // namespace elastic

namespace detail {

// Writes the newest committed copy of a state into a file, in a thread of its own. While it writes
// one copy, the state commits to others. If the disk is slower than the steps, it leaves steps out.
class state_keeper {
public:
    using write_copy = std::function<void(kept_writer&, int copy)>;

    // @throws checkpoint_error if the directory is missing and can't be made, or not for writing
    state_keeper(std::string directory, const elastic::persist_options& options, write_copy write)
        : every_(checked(options.every)),
          directory_(std::move(directory)),
          place_(place_of_host(kept_head::suffix)),
          lock_(directory_.path(), place_of_host(".hvd_lock")),
          write_(std::move(write)),
          thread_([this] { work(); }) {
        if (!thread_) throw usage_error(-1, "hvd: the system starts no thread");
    }
    state_keeper(const state_keeper&) = delete;
    state_keeper& operator=(const state_keeper&) = delete;
    // The last commit is written first.
    ~state_keeper() {
        {
            const lock_guard lock(mutex_);
            stops_ = true;
        }
        changed_.notify_all();
    }

    const kept_directory& directory() const { return directory_; }

    // The files are sealed with this key, if there is one: before the first is read or written.
    void set_key(const kept_key& key) {
        const lock_guard lock(mutex_);
        key_ = key;
    }
    kept_key key() const {
        const lock_guard lock(mutex_);
        return key_;
    }

    // One process of a host writes for all of them. @throws checkpoint_error if that of another job
    // does so in the same directory
    void set_writes(bool writes, std::uint64_t job) {
        writes ? lock_.take(job) : lock_.release();
        const lock_guard lock(mutex_);
        writes_ = writes;
        is_due_ = is_due_ && writes;
    }
    // The state has committed a step to this copy, and does not change it before the next one. At
    // step 0 nothing is done that is worth a file.
    void commit(int copy, std::int64_t step) {
        {
            const lock_guard lock(mutex_);
            // Commits may have several steps, and pass the one that is due.
            is_due_ = is_due_ || (writes_ && step / every_ > newest_step_ / every_);
            newest_ = copy;
            newest_step_ = step;
        }
        changed_.notify_all();
    }
    // The copy that is written now, or -1.
    int written_copy() const {
        const lock_guard lock(mutex_);
        return written_;
    }

    void has_read(std::int64_t step) {
        const lock_guard lock(mutex_);
        kept_.step = step;
    }
    elastic::persisted_steps persisted() const {
        const lock_guard lock(mutex_);
        return kept_;
    }

private:
    static std::int64_t checked(std::int64_t every) {
        if (every < 1)
            throw usage_error(
                -1, text("hvd: persist_in with every = ", every, ": it takes 1 or more steps"));
        return every;
    }
    file_place place_of_host(std::string_view suffix) const {
        char name[128] = {};
        ::gethostname(name, sizeof name - 1);
        return directory_.place_of(std::string(text(name, suffix)));
    }

    void work() {
        // A file beyond RLIMIT_FSIZE would end the process by a signal. Others are not for here.
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        wake_without_preempting();  // the step that has woken it
        while (take_newest()) {
            const message error = write();
            const lock_guard lock(mutex_);
            written_ = -1;
            if (error.empty()) kept_.step = written_step_;
            try {
                kept_.error = error;
            } catch (...) {
                kept_.error = "no memory";  // so short that it needs none
            }
        }
    }
    bool take_newest() {
        const lock_guard lock(mutex_);
        while (!is_due_ && !stops_) changed_.wait(mutex_);
        written_ = newest_;
        written_step_ = newest_step_;
        return std::exchange(is_due_, false);
    }
    // Returns why it failed. The line is written once, and not again for each step.
    message write() noexcept {
        try {
            kept_writer file(place_, written_step_, key());
            write_(file, written_);
            file.commit();
            has_told_ = false;
            return {};
        } catch (...) {
            message error = what_of(std::current_exception());
            if (!std::exchange(has_told_, true))
                write_line(text_or("hvd: a step is not kept, and the job goes on", "hvd: step ",
                                   written_step_, " is not kept, and the job goes on: ", error));
            return error;
        }
    }

    const std::int64_t every_;
    const kept_directory directory_;
    const file_place place_;
    job_lock lock_;
    const write_copy write_;
    kept_key key_;
    std::int64_t written_step_ = 0;  // this and the next one: of the thread alone
    bool has_told_ = false;
    mutable mutex mutex_;
    condition changed_;
    bool writes_ = false, is_due_ = false, stops_ = false;
    int newest_ = 0, written_ = -1;
    std::int64_t newest_step_ = 0;
    elastic::persisted_steps kept_;
    thread thread_;  // the last member: it ends before the others
};

}  // namespace detail
}  // namespace hvd::inline v0
