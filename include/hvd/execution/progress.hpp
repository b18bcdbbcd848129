// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <coroutine>

#include "../platform/thread.hpp"
#include "call_driver.hpp"
#include "completion_callback.hpp"

namespace hvd::inline v0::detail {

class progress;
class queued;

// A coroutine that waits for a call. It lives in the coroutine's frame.
struct waiter {
    std::coroutine_handle<> handle;
    queued* call = nullptr;
    waiter* behind = nullptr;
};

// The queue in which an asynchronous call waits: that of a communicator, or an engine's.
struct queue_of_calls {
    // Both throw only in a forked child. take_failure() returns the call's exception.
    bool (*test)(queued&);
    void (*wait)(queued&);
    // Waits in a destructor: as wait() does, or for the destructor's timeout at most while an
    // exception unwinds.
    void (*wait_at_end)(queued&);
    // Resumes the coroutine from run_ready() once its call is complete.
    void (*resume_later)(queued&, waiter& coroutine) noexcept;
    // Called if the coroutine is destroyed before that.
    void (*forget)(queued&, waiter& coroutine) noexcept;
    void (*run_ready)(queued&);
    // Makes the next call of the queue throw an exception that nobody has seen.
    void (*leave_unseen)(queued&, std::exception_ptr failure) noexcept;
};

// An asynchronous collective in a queue.
class queued : public counted {
public:
    operation* op = nullptr;   // part of the class derived from this one
    time_limit timeout{};      // counts from the call's turn
    time_point limit = never;  // known when the call has begun and something waits for it
    bool is_awaited = false;   // without a progress thread: by wait() or test()
    bool has_begun = false;    // the other ranks know it, or it is over
    time_point made = 0;       // known of an engine's, and if somebody observes the calls
    time_point ready = 0;      // known of an engine's if somebody observes them
    const queue_of_calls* queue = nullptr;
    // Completes the arguments of a call that needs the result of an earlier one, in its turn. It
    // may throw: then the call is not made. So the call is not made on the other ranks, either.
    void (*at_turn)(queued&) = nullptr;
    std::exception_ptr forfeited;  // an earlier call's, if this one throws it
    shared<counted> owner;         // a session, or an engine: its queue knows
    shared<queued> behind;         // the next in the queue

    bool test() { return queue->test(*this); }
    void wait() { queue->wait(*this); }
    void wait_at_end() { queue->wait_at_end(*this); }
    void resume_later(waiter& coroutine) noexcept {
        coroutine.call = this;
        queue->resume_later(*this, coroutine);
    }
    void forget(waiter& coroutine) noexcept { queue->forget(*this, coroutine); }
    void run_ready() { queue->run_ready(*this); }
    void leave_unseen(std::exception_ptr failure) noexcept {
        queue->leave_unseen(*this, std::move(failure));
    }

    bool done() const { return done_.load(); }

    void finish(std::exception_ptr failure) {
        finish(std::move(failure), [](auto run) { run(); });
    }
    // The callback runs first, inside `around(run)`: who has waited for the call finds its work
    // done.
    template <class Around>
    void finish(std::exception_ptr failure, Around around) {
        tell(std::move(failure), around);
        set_done();
    }

    // The two parts of finish(), for a queue that holds a lock in the second one.
    template <class Around>
    void tell(std::exception_ptr failure, Around around) {
        failure_ = failure;
        // The callback may drop its own request, which looks whether the failure is told.
        then_.complete(failure, [&](auto run) {
            is_told_.store(true);
            around(run);
        });
    }
    void set_done() { done_.store(true); }

    // f(failure) runs when the call is complete, or now.
    template <class F>
    void then(F f) {
        const auto outcome = then_.give(std::move(f), failure_);
        if (outcome == completion_callback::outcome::is_second)
            throw usage_error(-1, "hvd: this request has a callback of .then() already");
        if (outcome == completion_callback::outcome::run) is_told_.store(true);
    }
    // True if a callback has got the failure.
    bool is_told() const { return is_told_.load(); }

    // Returns the exception once: the first caller has seen it.
    std::exception_ptr take_failure() { return std::exchange(failure_, nullptr); }

private:
    atomic<bool> done_{false};
    atomic<bool> is_told_{false};
    std::exception_ptr failure_;
    completion_callback then_;
};

// The coroutines that wait for calls of a queue, in order. Its owner holds a lock.
class coroutine_list {
public:
    void add(waiter& last) noexcept {
        waiter** end = &first_;
        while (*end != nullptr) end = &(*end)->behind;
        *end = &last;
    }

    void remove(const waiter& gone) noexcept {
        for (waiter** at = &first_; *at != nullptr; at = &(*at)->behind)
            if (*at == &gone) {
                *at = gone.behind;
                return;
            }
    }

    // Returns the first coroutine whose call is complete.
    std::coroutine_handle<> take_ready() {
        for (waiter** at = &first_; *at != nullptr; at = &(*at)->behind)
            if ((*at)->call->done()) return std::exchange(*at, (*at)->behind)->handle;
        return {};
    }

    queued* first_call() const noexcept { return first_ != nullptr ? first_->call : nullptr; }

private:
    waiter* first_ = nullptr;  // the others follow
};

// A queued call that makes a value.
template <class T>
struct queued_value : queued {
    T value{};
};

// The asynchronous calls of one communicator, in their order. If the backend allows it, a thread
// drives them; otherwise wait() and test() do, and each submission and drive() on the way.
class progress final : public call_queue {
public:
    explicit progress(call_driver& owner) : owner_(owner) {
        drain = [](call_queue& self) noexcept { static_cast<progress&>(self).finish_all(); };
        stop = [](call_queue& self) noexcept { static_cast<progress&>(self).end(); };
        drive = [](call_queue& self, bool is_patient) {
            static_cast<progress&>(self).drive_calls(is_patient);
        };
        run_ready = [](call_queue& self) { return static_cast<progress&>(self).resume_ready(); };
    }
    ~progress() { end(); }

    // Returns the communicator's queue. Its first asynchronous call makes it.
    static progress& of(session& session_of_call) {
        call_driver& e = static_cast<call_driver&>(session_of_call);
        if (!e.queue()) e.queue() = shared<progress>::make(e);
        return static_cast<progress&>(*e.queue());
    }

    // Begins a call of a communicator that no other thread uses.
    static void submit(session& session_of_call, const shared<queued>& call, time_limit timeout) {
        const session_use use(session_of_call.user(), &call->op->entry);
        of(session_of_call).start(call, timeout);
    }

    void start(const shared<queued>& call, time_limit timeout) {
        owner_.refuse_in_driver(&call->op->entry);
        owner_.admit_asynchronous(*call->op, call->forfeited);
        call->queue = &functions;
        call->owner = shared<counted>(&owner_);
        call->timeout = timeout;
        if (owner_.observing().call != nullptr) call->made = quick_now();
        if (!worker_ && owner_.threaded()) worker_ = thread([this] { serve(); });
        append(call);
        drive_calls(true);
    }

    // Without a progress thread: nobody waits for these calls yet. The calls of direct<> wait for
    // their peers inside the library.
    void drive_calls(bool is_patient) {
        if (worker_ || !owner_.compares_calls()) return;
        patience left(patience_, is_patient && owner_.may_spin());
        while (const shared<queued> head = front())
            while (!advance(*head, false))
                if (!left.goes_on(owner_.rounds())) return;
    }

    bool test(queued& call) {
        owner_.refuse_if_forked(*call.op);
        const session_use use(owner_.user(), &call.op->entry);
        owner_.refuse_in_driver(&call.op->entry);
        if (!worker_) advance_to(call);
        return call.done();
    }

    void wait(queued& call) {
        owner_.refuse_if_forked(*call.op);
        const session_use use(owner_.user(), &call.op->entry);
        owner_.refuse_in_driver(&call.op->entry);
        complete(call);
    }

    // In a destructor: nothing is refused, so it waits for its turn. A request that is destroyed
    // inside a call of its communicator can't wait for its own.
    void wait_at_end(queued& call) {
        owner_.refuse_if_forked(*call.op);
        const bool unwinds = std::uncaught_exceptions() > 0;
        const time_point limit = unwinds ? owner_.destructor_limit() : never;
        if (owner_.user().is_inside()) return forgo(call);
        if (unwinds) owner_.stop_at(limit);
        const bool held = owner_.take_until(unwinds ? limit + tuning::time_to_give_up : never);
        if (held || worker_) complete(call);
        if (unwinds) owner_.stop_at(never);
        if (held) owner_.user().give_back();
    }

    void add_waiter(waiter& last) noexcept {
        const lock_guard lock(mutex_);
        waiting_.add(last);
    }

    void remove_waiter(const waiter& gone) noexcept {
        const lock_guard lock(mutex_);
        waiting_.remove(gone);
    }

    // No call is under way while a coroutine runs. If another thread is inside a call meanwhile,
    // the rest is resumed later.
    std::size_t resume_ready() {
        std::size_t resumed = 0;
        while (const auto ready = take_ready()) {
            ready.resume();
            ++resumed;
        }
        return resumed;
    }

    // The caller holds the communicator.
    void finish_all() noexcept {
        if (!worker_) {
            while (const shared<queued> head = front()) finish(*head);
            return;
        }
        shared<queued> last;
        {
            const lock_guard lock(mutex_);
            last = last_;
        }
        if (last) wait_done(*last);
    }

    void end() noexcept {
        if (!worker_) return;
        {
            const lock_guard lock(mutex_);
            stopping_ = true;
            changed_.notify_all();
        }
        worker_.join();
    }

private:
    // How long calls are driven in which nothing goes on. The peers drive them at about the same
    // time, and a message is under way for some microseconds. The span grows where that has paid.
    class patience {
    public:
        patience(std::int64_t& span, bool is_there) : span_(span), is_there_(is_there) {}

        // Asked when the call that is driven waits: true if it is to be driven further.
        bool goes_on(std::uint64_t rounds) {
            if (!is_there_) return false;
            const time_point time = now();
            if (rounds != rounds_) {
                pays_ = pays_ || waits_since_ != 0;
                rounds_ = rounds;
                waits_since_ = 0;
            }
            if (waits_since_ == 0) waits_since_ = time;
            if (time - waits_since_ <= span_) return true;
            span_ = pays_ ? 2 * span_ : span_ / 2;
            if (span_ > tuning::most_patience) span_ = tuning::most_patience;
            if (span_ < tuning::least_patience) span_ = tuning::least_patience;
            return false;
        }

    private:
        std::int64_t& span_;
        const bool is_there_;
        bool pays_ = false;
        std::uint64_t rounds_ = 0;
        time_point waits_since_ = 0;
    };

    static constexpr std::string_view destroyed_inside =
        "hvd: the request of this call was destroyed inside another call of its communicator";

    // A call that has not begun is refused in its place. That goes with its failure: the operation
    // may be a plan's, which runs again.
    [[gnu::cold]] void forgo(queued& call) noexcept {
        if (call.has_begun || call.forfeited) return;
        call.forfeited =
            made_or_thrown([&] { return usage_error(owner_.rank(), destroyed_inside); });
        call.op->failure = &call.forfeited;
        call.op->entry.refuse(destroyed_inside);
    }

    void append(const shared<queued>& call) {
        const lock_guard lock(mutex_);
        if (last_) last_->behind = call;
        else first_ = call;
        last_ = call;
        changed_.notify_all();
    }

    void complete(queued& call) {
        if (worker_) return wait_done(call);
        while (!call.done()) finish(*front());
    }

    void advance_to(queued& call) {
        while (!call.done())
            if (!advance(*front(), true)) return;
    }

    // Returns the first coroutine whose call is complete. Without a progress thread it advances the
    // calls up to that of the first coroutine.
    std::coroutine_handle<> take_ready() {
        if (const shared<queued> call = first_waited(); call && !worker_ && !call->done()) {
            owner_.refuse_if_forked(*call->op);
            if (!owner_.user().try_take()) return {};
            const session_use use(owner_.user());
            advance_to(*call);
        }
        const lock_guard lock(mutex_);
        return waiting_.take_ready();
    }

    shared<queued> first_waited() {
        const lock_guard lock(mutex_);
        return shared<queued>(waiting_.first_call());
    }

    shared<queued> front() {
        const lock_guard lock(mutex_);
        return first_;
    }

    void wait_done(const queued& call) {
        const lock_guard lock(mutex_);
        while (!call.done()) changed_.wait(mutex_);
    }

    // Returns the next call for the progress thread, or nothing at the end.
    shared<queued> next() {
        const lock_guard lock(mutex_);
        while (!first_ && !stopping_) changed_.wait(mutex_);
        return stopping_ ? shared<queued>() : first_;
    }

    void serve() {
        owner_.user().set_driver();
        if (const int cpu = owner_.cpu; cpu >= 0) {
            if (!processor_set::of_this_thread().only(cpu).keep_this_thread())
                write_line(text_or("hvd: a rank can't run on its processor", "hvd: rank ",
                                   owner_.rank(), " can't run on processor ", cpu));
        }
        while (const shared<queued> head = next()) finish(*head);
    }

    static void take_turn(queued& head) {
        if (head.at_turn != nullptr) head.at_turn(head);
    }

    // The time of a call counts from its turn. Without a progress thread it counts from the first
    // wait: the program computes before it.
    void await(queued& head) {
        if (std::exchange(head.is_awaited, true)) return;
        head.limit = owner_.limit_for(*head.op, head.timeout);
    }

    void begin(queued& head, bool is_awaited) {
        if (is_awaited) await(head);
        else static_cast<void>(owner_.limit_for(*head.op, head.timeout));  // refuses a wrong one
        owner_.set_time_made(head.made);
        owner_.start(*head.op);
        head.has_begun = true;
    }

    // Runs the first call in the queue to its end.
    void finish(queued& head) {
        std::exception_ptr failure;
        try {
            const bool has_begun = std::exchange(under_way_, false);
            if (!has_begun) take_turn(head);
            owner_.refuse_if_unusable(*head.op);
            if (!has_begun) begin(head, true);
            await(head);
            // The user's thread computes while the progress thread waits.
            head.op->threads = owner_.threaded() ? 2 : 1;
            owner_.finish(*head.op, head.limit);
        } catch (...) {
            failure = std::current_exception();
        }
        pop(std::move(failure));
    }

    // Without a progress thread: advances the first call as far as possible without waiting. It
    // returns true when the call is over.
    bool advance(queued& head, bool is_awaited) {
        std::exception_ptr failure;
        try {
            if (!std::exchange(under_way_, true)) {
                take_turn(head);
                owner_.refuse_if_unusable(*head.op);
                begin(head, is_awaited);
            }
            if (is_awaited) await(head);
            if (!owner_.advance(*head.op, head.limit, is_awaited)) return false;
        } catch (...) {
            failure = std::current_exception();
        }
        under_way_ = false;
        pop(std::move(failure));
        return true;
    }

    void pop(std::exception_ptr failure) {
        const shared<queued> head = front();
        head->has_begun = true;
        head->tell(std::move(failure), [](auto run) { run(); });
        const lock_guard lock(mutex_);
        first_ = std::move(head->behind);
        if (!first_) last_ = {};
        head->set_done();
        changed_.notify_all();
    }

    static call_driver& driver_of(queued& call) { return static_cast<call_driver&>(*call.owner); }
    static progress& of(queued& call) { return of(driver_of(call)); }

    static void keep_unseen(queued& call, std::exception_ptr failure) noexcept {
        call_driver& driver = driver_of(call);
        const bool held = driver.take_until(driver.destructor_limit());
        if (held || driver.user().is_inside()) driver.set_unseen(std::move(failure));
        if (held) driver.user().give_back();
    }

    static const queue_of_calls functions;

    call_driver& owner_;
    mutex mutex_;
    condition changed_;  // signals changes of the queue and of complete calls
    shared<queued> first_, last_;
    bool under_way_ = false;  // the first call has begun, without a progress thread
    std::int64_t patience_ = tuning::most_patience;
    coroutine_list waiting_;
    bool stopping_ = false;
    thread worker_;
};

inline constexpr queue_of_calls progress::functions{
    .test = [](queued& call) { return of(call).test(call); },
    .wait = [](queued& call) { of(call).wait(call); },
    .wait_at_end = [](queued& call) { of(call).wait_at_end(call); },
    .resume_later = [](queued& call, waiter& last) noexcept { of(call).add_waiter(last); },
    .forget = [](queued& call, waiter& gone) noexcept { of(call).remove_waiter(gone); },
    .run_ready = [](queued& call) { of(call).resume_ready(); },
    .leave_unseen = &keep_unseen};

}  // namespace hvd::inline v0::detail
