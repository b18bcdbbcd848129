// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "../core/compiled.hpp"
#include "unit_driver.hpp"

namespace hvd::inline v0::detail {

// The part of an engine that the threads of a rank call: they submit tensors and wait for them.
class HVD_API engine_core final : public unit_driver {
public:
    engine_core(shared<session> data, bool one_node, const engine_options& options,
                std::function<void()> wake)
        : unit_driver(std::move(data), one_node, options, std::move(wake)),
          no_memory_(text("rank ", rank(), " has no memory left, not even to tell what failed")) {}

    // ---- for any thread -----------------------------------------------------------------------

    // `fill` is called for the call once its name is known to be free, `on_done` when the engine is
    // done with it.
    void submit(std::string_view name, const shared<queued>& call, const signature& mine,
                callback then, void (*fill)(queued&),
                void (*on_done)(queued&, bool has_failed) = nullptr);

    // That of the communicator which the engine was made of.
    const shared<step_question>& question() { return runner_.driver().question; }

    // Requests of this call wait in the engine.
    void adopt(queued& call) {
        call.queue = &functions;
        call.owner = shared<counted>(this);
    }

    // The others learn why this rank has no tensor of that name. Without memory for that it ends
    // the engine: they would wait for the tensor.
    void refuse_on_all(std::string_view name, signature mine, std::string_view why) {
        or_leave([&] {
            const auto call = shared<refusal_call>::make();
            call->op = &call->none;
            mine.call.refuse(why);
            mine.call.root = 0;  // it may be wrong, and nobody compares it
            submit(name, call, mine, {}, [](queued&) {});
        });
    }

    // Runs f, which prepares or submits a tensor. Where it fails since there is no memory or code
    // of the user throws, no rank has the tensor: the others learn why. f tells them itself of
    // hvd's own errors, where they concern them.
    template <class F>
    auto or_refuse(std::string_view name, F&& f) -> decltype(f()) {
        try {
            return f();
        } catch (const error&) {
            throw;
        } catch (...) {
            const std::exception_ptr failure = std::current_exception();
            try {
                refuse_on_all(name, signature{}, what_of(failure));
            } catch (...) {  // the engine has ended, or the name belongs to another tensor
            }
            std::rethrow_exception(failure);
        }
    }
    // The same for what can't be refused.
    template <class F>
    void or_leave(F&& f) {
        try {
            f();
        } catch (const error&) {
            throw;
        } catch (...) {
            leave_for(std::current_exception());
            throw;
        }
    }

    // A call that is wrong by itself: the other ranks learn why, and this one throws it.
    [[noreturn]] void submit_refusal(std::string_view name, const signature& mine,
                                     std::string_view why) {
        refuse_on_all(name, mine, why);
        throw usage_error(rank(), text(why, " ('", name, "' on rank ", rank(), ")"));
    }

    // An error that nobody has looked at takes the place of the next tensor, on all ranks.
    void throw_unseen_instead_of(std::string_view name, const signature& mine) {
        std::exception_ptr unseen;
        {
            const lock_guard lock(mutex_);
            unseen = std::exchange(unseen_, nullptr);
        }
        if (!unseen) return;
        refuse_on_all(name, mine,
                      text_or("hvd: an earlier tensor of this rank failed",
                              "hvd: an earlier tensor of this rank failed: ", what_of(unseen)));
        std::rethrow_exception(unseen);
    }

    // Waits until nothing is pending, or until the engine has ended.
    void wait_idle(time_point limit) {
        wait_until(limit, [this] { return is_idle(); });
    }
    void wait_ended(time_point limit) {
        wait_until(limit, [this] { return has_ended(); });
    }
    template <class Condition>
    void wait_until(time_point limit, Condition holds) {
        for (;;) {
            const completions::ticket seen = completions_.take_ticket();
            drive_prediction(1);
            if (holds() || now() > limit) return;
            completions_.sleep(seen, limit, [this] { ask_for_patience(); });
        }
    }

    // This rank has no more data. The request is complete when all ranks have joined.
    void join(const shared<queued_value<int>>& call) {
        {
            const lock_guard lock(mutex_);
            refuse_if_ended("join");
            throw_unseen();
            if (join_) throw usage_error(rank(), text("hvd: rank ", rank(), " has joined already"));
            adopt(*call);
            join_ = call;
            if (predicted_) decline_ = message::fixed(joins);
            else commands_.join = true;
        }
        wake_();
    }

    // Gives all ranks other thresholds, or none of them.
    void retune(const engine_tuning& to) {
        refuse_inside_callback();
        constexpr std::string_view name = "the retune of the engine";
        shared<retune_call> call;
        or_refuse(name, [&] {
            call = shared<retune_call>::make();
            call->op = &call->none;
            call->values = to;
            signature mine;
            mine.call = agreement_header("");
            submit(name, call, mine, {}, [](queued& c) {
                static_cast<retune_call&>(c).in_flight = of(c).pending_.names(&c);
            });
        });
        wait(*call);
        if (const std::exception_ptr failure = call->take_failure())
            std::rethrow_exception(failure);
    }

    bool test(queued& call) {
        runner_.driver().refuse_if_forked(*call.op);
        help(call);
        return call.done();
    }

    void wait(queued& call, time_point limit = never) {
        runner_.driver().refuse_if_forked(*call.op);
        refuse_inside_callback();
        for (;;) {
            const completions::ticket seen = completions_.take_ticket();
            help(call);
            if (call.done() || now() > limit) return;
            completions_.sleep(seen, limit, [this] { ask_for_patience(); });
        }
    }

    // This rank is done with the engine, or leaves it: its thread tells the others. Others that
    // wait for a predicted tensor of this rank learn of it by a decline.
    void say_bye() {
        {
            const lock_guard lock(mutex_);
            commands_.bye = done_ = true;
            if (predicted_ && decline_.empty()) decline_ = message::fixed(no_more);
        }
        wake_();
    }
    // A call under way at that time gives the communicator up.
    void stop_calls_at(time_point limit) { runner_.driver().stop_at(limit); }
    void leave(message reason) noexcept {
        // The engine's thread may wait in a call, whose peers hear the reason by it.
        runner_.driver().stop_for(text_or(no_memory_for_text, reason));
        {
            const lock_guard lock(mutex_);
            // the first reason counts
            if (commands_.leave.empty()) commands_.leave = std::move(reason);
        }
        wake_();
    }
    void leave_for(const std::exception_ptr& failure) noexcept {
        message reason;
        try {
            reason = text("rank ", rank(), " failed: ", what_of(failure));
        } catch (...) {
            const lock_guard lock(mutex_);
            reason = std::move(no_memory_);
        }
        leave(std::move(reason));
    }

private:
    struct refusal_call : queued {
        operation none{};
    };

    // Takes a tensor under its name. False if the name is that of a refused tensor, which has no
    // request to wait for: it is free once the peers have submitted theirs.
    bool take(std::string_view name, pending_tensor& entry, void (*fill)(queued&)) {
        bool wakes = false;
        pending_tensor undone;  // it ends without the lock
        {
            const lock_guard lock(mutex_);
            refuse_if_ended(name);
            if (join_) refuse_after_join(name);
            queued& call = *entry.call;
            entry.since = quick_now();
            if (call.timeout.is_time()) entry.limit = entry.since + call.timeout.time().nanoseconds;
            entry.number = ++submissions_;
            const auto* const added = pending_.add(name, std::move(entry));
            if (added == nullptr && pending_.refuses(name)) return false;
            if (added == nullptr) refuse_duplicate(name);
            call.made = added->second.since;
            try {
                fill(call);
                tell(observed_moment::submitted, name, added->second.mine, call.made, call.made);
                wakes = take_note(added->first, added->second);
            } catch (...) {
                undone = pending_.take(added->first);
                throw;
            }
            counts_.submitted += !is_retune(added->second.mine);
        }
        if (wakes) wake_();
        return true;
    }
    void wait_for_refusal_of(std::string_view name) {
        refuse_inside_callback();
        wait_until(never, [&] {
            const lock_guard lock(mutex_);
            return ended_ || !pending_.refuses(name);
        });
    }

    // ---- for requests ---------------------------------------------------------------------------

    static engine_core& of(queued& call) { return static_cast<engine_core&>(*call.owner); }

    // The memory of the call goes away. If it is not complete in time, the engine is given up.
    void wait_at_end(queued& call) {
        const std::int64_t patience = session_->options().destructor_timeout.nanoseconds;
        if (!is_inside_callback())
            wait(call, std::uncaught_exceptions() > 0 ? now() + patience : never);
        if (call.done()) return;
        message why = reason_of_its_end(call);
        const auto failure =
            made_or_thrown([&] { return usage_error(rank(), text("hvd: ", why)); });
        set_reason(failure);  // before that of the engine's thread, which tells the other ranks
        leave(std::move(why));
        fail(failure);
        if (!call.done()) wait(call);
    }
    message reason_of_its_end(const queued& call) noexcept {
        const lock_guard lock(mutex_);
        const std::string_view name = pending_.name_of(call);
        const bool works = name.empty() && call.op->entry.name[0] != 0;
        return text_or("a request was destroyed before its tensor was complete", "rank ", rank(),
                       ": the request of '", works ? std::string_view(call.op->entry.name) : name,
                       "' was destroyed before ",
                       works ? "its work was done" : "all ranks had submitted the tensor");
    }

    static const queue_of_calls functions;

    message no_memory_;  // why this rank ends the engine where there is no memory for a reason
};

}  // namespace hvd::inline v0::detail

#ifndef HVD_COMPILED
#include "core_inline.hpp"
#endif
