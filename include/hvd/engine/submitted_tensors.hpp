// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <vector>

#include "../core/message_sink.hpp"
#include "../observe/engine_statistics.hpp"
#include "../platform/thread.hpp"
#include "completions.hpp"
#include "pending_table.hpp"

namespace hvd::inline v0::detail {

// The tensors that a rank has submitted to its engine, and those who wait for them.
class submitted_tensors : public counted {
public:
    using callback = std::function<void(std::exception_ptr)>;

    int rank() const { return rank_; }

    engine_statistics statistics() {
        const lock_guard lock(mutex_);
        return counts_;
    }
    // Changes the counts: `change` gets them.
    template <class F>
    void count(F change) {
        const lock_guard lock(mutex_);
        change(counts_);
    }

    bool is_idle() {
        const lock_guard lock(mutex_);
        return pending_.empty() && !join_ && watched_.load() == 0;
    }
    // The names of the tensors that are pending, a few of them.
    message pending_names() noexcept {
        const lock_guard lock(mutex_);
        try {
            return pending_.names();
        } catch (...) {
            return message::fixed("some that there is no memory to name");
        }
    }

    // The engine ends since a deadline has passed. Its error says for whom it has waited. The
    // record is written where it was asked for.
    void tell_last_tensors() noexcept {
        if (!is_record_wanted()) return;
        tell_record(rank(), [&](record_line& line) {
            const lock_guard lock(mutex_);
            add_last_tensors(line.add(": its last tensors are "), pending_.record(), 4);
        });
    }

    std::size_t run_ready() {
        std::size_t resumed = 0;
        for (;; ++resumed) {
            std::coroutine_handle<> ready;
            {
                const lock_guard lock(mutex_);
                ready = coroutines_.take_ready();
            }
            if (!ready) return resumed;
            ready.resume();
        }
    }

    bool has_ended() {
        const lock_guard lock(mutex_);
        return ended_ != nullptr;
    }

    void refuse(const std::string& name, std::exception_ptr why) {
        pending_tensor refused;
        {
            const lock_guard lock(mutex_);
            refused = pending_.take(name);
            if (refused.call) count_failed(refused);
        }
        if (!refused.call) return;
        try {
            tell(observed_moment::incomplete, name, refused.mine, quick_now(), refused.since);
        } catch (...) {  // the failure of the tensor goes before that of its observer
        }
        complete(refused, std::move(why));
        completions_.announce();
    }

    void all_joined(int last) {
        shared<queued_value<int>> call;
        {
            const lock_guard lock(mutex_);
            call = std::move(join_);
            join_ = {};
        }
        if (!call) return;
        call->value = last;
        finish(*call, nullptr);
        completions_.announce();
    }

    // ---- for device tensors, whose work may be under way when they are not pending any more -----

    bool tells_of_work() const { return observing_.wants(observed_moment::complete); }
    void tell_of_work(const event& e, bool succeeded) const {
        if (tells_of_work())
            observing_.tell(e, succeeded ? observed_moment::complete : observed_moment::incomplete);
    }
    // Somebody wants to be told when the work of a tensor is over.
    void begin_watch() { watched_.add(1); }
    void end_watch() {
        watched_.add(-1);
        completions_.announce();
    }

    // Calls back on this thread, if somebody wants it.
    void call_back(const callback& then, const std::exception_ptr& failure) noexcept {
        if (!then) return;
        const callback_scope scope(*this);
        try {
            then(failure);
        } catch (...) {
            write_line(
                text_or("hvd: the callback of a tensor threw", "hvd: rank ", rank(),
                        ": the callback of a tensor threw: ", what_of(std::current_exception())));
        }
    }

    stall_watch::tensor oldest() {
        const lock_guard lock(mutex_);
        return pending_.oldest();
    }
    stall_watch::tensor most_urgent() {
        const lock_guard lock(mutex_);
        return pending_.most_urgent();
    }

protected:
    explicit submitted_tensors(const call_driver& data)
        : pending_(data.record().head),
          observing_(data.observing()),
          rank_(data.rank()),
          size_(data.size()) {}
    ~submitted_tensors() = default;

    // Tells an observer of a tensor that was submitted at that time, if it wants to know.
    void tell(observed_moment m, std::string_view name, const signature& s, time_point time,
              time_point submitted) const {
        if (!observing_.wants(m)) return;
        event e{name_of(s.call.kind),
                name,
                s.call.id,
                std::size_t(s.bytes),
                rank_,
                size_,
                time,
                submitted};
        e.on_device = s.where == tensor_memory::device;
        observing_.tell(e, m);
    }

    // ---- with the lock held ---------------------------------------------------------------------

    void refuse_if_ended(std::string_view name) const {
        if (!ended_) return;
        throw peer_error(rank(),
                         text("hvd: '", name, "' on rank ", rank(),
                              ": this engine has ended: ", what_of(ended_)),
                         peers_of(ended_));
    }
    [[noreturn]] void refuse_duplicate(std::string_view name) const {
        throw usage_error(rank(), text("hvd: rank ", rank(), ": '", name,
                                       "' is in flight already: a tensor is submitted again once "
                                       "its request is complete, or has a name of its own"));
    }
    [[noreturn]] void refuse_after_join(std::string_view name) const {
        throw usage_error(rank(), text("hvd: rank ", rank(), ": '", name,
                                       "' comes after this rank has joined: it submits again once "
                                       "all ranks have joined"));
    }
    void count_failed(const pending_tensor& t) { counts_.failed += !is_retune(t.mine); }
    void throw_unseen() {
        if (unseen_) std::rethrow_exception(std::exchange(unseen_, nullptr));
    }

    // ---- without the lock -------------------------------------------------------------------

    // Nobody holds the lock. The callback may submit further tensors.
    void complete(pending_tensor& entry, std::exception_ptr failure) noexcept {
        if (entry.on_done != nullptr) entry.on_done(*entry.call, failure != nullptr);
        const callback then = std::move(entry.then);
        if (!then) return finish(*entry.call, std::move(failure));
        finish(*entry.call, failure);
        call_back(then, failure);
    }

    void finish(queued& call, std::exception_ptr failure) {
        call.finish(std::move(failure), [this](auto run) {
            const callback_scope scope(*this);
            run();
        });
    }

    // The threads that wait get the exception, and it dies there: its counter is not visible to
    // ThreadSanitizer.
    void complete_all(std::vector<pending_tensor>& all, std::exception_ptr failure) noexcept {
        for (std::size_t i = 0; i + 1 < all.size(); ++i) complete(all[i], failure);
        if (!all.empty()) complete(all.back(), std::move(failure));
        completions_.announce();
    }

    // A callback that waits would wait for itself.
    class callback_scope {
    public:
        explicit callback_scope(submitted_tensors& core) noexcept : core_(core) {
            const lock_guard lock(core_.mutex_);
            behind_ = std::exchange(core_.in_callbacks_, this);
        }
        callback_scope(const callback_scope&) = delete;
        callback_scope& operator=(const callback_scope&) = delete;
        ~callback_scope() {
            const lock_guard lock(core_.mutex_);
            callback_scope** at = &core_.in_callbacks_;
            while (*at != this) at = &(*at)->behind_;
            *at = behind_;
        }

    private:
        friend class submitted_tensors;

        submitted_tensors& core_;
        const session_user::id thread_ = session_user::this_thread();
        callback_scope* behind_;
    };
    bool is_inside_callback() {
        const lock_guard lock(mutex_);
        for (const callback_scope* at = in_callbacks_; at != nullptr; at = at->behind_)
            if (at->thread_ == session_user::this_thread()) return true;
        return false;
    }
    void refuse_inside_callback() {
        if (is_inside_callback())
            throw usage_error(rank(), text("hvd: rank ", rank(),
                                           ": a callback of an engine waits "
                                           "for a tensor: it would wait for itself"));
    }

    mutex mutex_;  // for all of the following, atomics apart
    pending_table pending_;
    shared<queued_value<int>> join_;
    std::exception_ptr ended_, unseen_;
    coroutine_list coroutines_;
    engine_statistics counts_;
    callback_scope* in_callbacks_ = nullptr;  // of the threads that run one

    completions completions_;
    atomic<int> watched_{0};  // device tensors that somebody wants to be told of

    const observing observing_;

private:
    const int rank_, size_;
};

}  // namespace hvd::inline v0::detail
