// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/lean/atomic.hpp"
#include "../platform/clock.hpp"
#include "../protocol/agreement.hpp"
#include "../protocol/call_record.hpp"
#include "../transport/collectives.hpp"
#include "arrivals.hpp"
#include "call_records.hpp"
#include "input_check.hpp"
#include "observing.hpp"
#include "session.hpp"
#include "wait.hpp"

namespace hvd::inline v0::detail {

// The queue of a communicator that has made an asynchronous call: see progress.hpp. Programs
// without such calls do not compile it.
struct call_queue : counted {
    // A blocking call comes after all asynchronous ones made before it.
    void (*drain)(call_queue&) noexcept = nullptr;
    // Ends the progress thread; no call is under way.
    void (*stop)(call_queue&) noexcept = nullptr;
    // Advances the calls as far as possible, where no thread does. It does not wait, or only for
    // some microseconds at a time, if it is patient.
    void (*drive)(call_queue&, bool is_patient) = nullptr;
    // Resumes coroutines whose calls are complete, on this thread.
    std::size_t (*run_ready)(call_queue&) = nullptr;
};

// The settings of a backend for a session.
struct session_traits {
    detail::transport* transport = nullptr;
    bool threaded = false;  // a progress thread may drive it
    bool agrees_on_names = false;
    bool knows_no_timeout = false;  // it refuses those of calls
    // Set by a backend that runs whole collectives itself.
    void (*run_whole)(void* endpoint, operation&, workspace&) = nullptr;
    void* endpoint = nullptr;
    // Set by a backend to which the end of a rank's process matters beyond the communicator.
    void (*note_death)() noexcept = nullptr;
    detail::observing observing;
};

// Returns the processor of a local rank's progress thread, -1 if none was chosen.
// @throws hvd::usage_error for a list that is too short, and for a processor that this rank can't
// use
[[gnu::cold]] inline int cpu_of(const std::vector<int>& cpus, int local_rank, int local_size,
                                int rank) {
    if (cpus.empty()) return -1;
    if (cpus.size() < std::size_t(local_size))
        throw usage_error(
            rank, text("hvd: .cpus has ", cpus.size(), " processors, and the node of ", "rank ",
                       rank, " has ", local_size, " ranks; it takes one for each"));
    const int cpu = cpus[std::size_t(local_rank)];
    if (!processor_set::of_this_thread().has(cpu))
        throw usage_error(rank, text("hvd: .cpus[", local_rank, "] is ", cpu, ", which is no ",
                                     "processor that rank ", rank, " may run on"));
    return cpu;
}

// Keeps the order of one rank's calls on one communicator. It admits a call, drives it through its
// steps, and knows if the communicator can go on. It has no types, so that it is compiled once.
class call_driver : public session {
public:
    [[gnu::cold]] call_driver(int rank, int size, const communicator_options& options)
        : session(rank, size, options),
          record_(record_head::calls, rank, size),
          calls_(record_.get()),
          arrivals_(size),
          notice_(options, *calls_),
          patience_(options.timeout.patience()) {
        notice_.late = &arrivals_.late();
        run = &call_driver::run_now;
        close_ = [](session& self, const char* reason) noexcept {
            static_cast<call_driver&>(self).end(reason);
        };
        abandoned_ = [](session& self) {
            transport* const t = static_cast<call_driver&>(self).traits_.transport;
            return t != nullptr && t->abandoned();
        };
        tell_unmade_ = [](session& self, std::uint64_t context) noexcept {
            transport* const t = static_cast<call_driver&>(self).traits_.transport;
            if (t != nullptr) t->tell_unmade(context);
        };
        is_unmade_ = [](session& self, std::uint64_t context) {
            transport* const t = static_cast<call_driver&>(self).traits_.transport;
            return t != nullptr && t->is_unmade(context);
        };
    }

    // For the queue: an asynchronous call is admitted when it is made, and executed in its turn. It
    // keeps the exception of a call that it forfeits.
    void admit_asynchronous(operation& op, std::exception_ptr& kept) {
        admit(op);
        if (unseen_) [[unlikely]]
            take_unseen(op, kept);
    }

    // The processor of this rank's progress thread; -1: the system chooses.
    int cpu = -1;

    // Gives the communicator other thresholds, on all ranks or on none. The first agreement comes
    // after all calls made before, so that nothing is under way while memory is made.
    [[gnu::cold]] void retune(const tuning_options& tuned, time_point limit = never) {
        if (!traits_.transport)
            throw usage_error(rank(), "hvd: retune: a direct<> backend has no thresholds");
        const auto values = [&](auto say) { say_tuning(tuned, say); };
        call_header mine = agreement_header("retune");
        const auto prepare = [&] {
            check_tuning(tuned, rank());
            mine.content = content_of_values(values);
        };
        agree_on(*this, mine, limit, prepare, values);
        run_on_all(*this, "retune", limit, [&] { traits_.transport->prepare(tuned); });
        traits_.transport->retune(tuned);
        options_.tuning = tuned;
    }

    // For a blocking call that the backend's endpoint makes itself. The caller holds the
    // communicator. It is inline, since it costs only a few instructions if no asynchronous call
    // was ever made.
    void precede(collective kind) {
        if (!fork_.is_usable()) [[unlikely]]
            throw_ended(name_of(kind));
        if (queue_) [[unlikely]]
            catch_up(kind);
    }

    static constexpr std::string_view no_timeout =
        ": .timeout is given, and direct<> gives up no call that is inside the library: hvd::mpi "
        "and hvd::checked<hvd::direct<hvd::mpi>> do";
    // For such a call, and for such a communicator.
    [[gnu::cold, gnu::noinline, noreturn]] void throw_no_timeout(std::string_view what) const {
        throw usage_error(rank_, text("hvd: ", what, " on rank ", rank_, no_timeout));
    }

    [[gnu::cold, gnu::noinline, noreturn]] void throw_no_checks() const {
        throw usage_error(rank_, text("hvd: .check_finite is given on rank ", rank_,
                                      ", and the ranks of direct<> tell each other nothing before "
                                      "a call: hvd::mpi and hvd::checked<hvd::direct<hvd::mpi>> "
                                      "do"));
    }

    // A callable or an observer that runs in the progress thread makes no calls: the thread would
    // wait for itself.
    template <class Call>
    void refuse_in_driver(Call call) {
        if (user().is_driver()) [[unlikely]]
            user().refuse(call, true);
    }

    // From now on a call may ask for a look at its input. Without that, calls have nothing to ask.
    void take_finite_checks() noexcept {
        __atomic_fetch_or(&traits_.observing.wanted, observing::looks_at_input, __ATOMIC_RELAXED);
    }

    // Where no thread does that, the queue goes on as far as it can without waiting. A failure is
    // that of a call, and for its request.
    void make_progress(bool is_patient = false) {
        if (fork_.in_child()) throw_ended("progress");
        if (traits_.threaded) return;
        const session_use use(user_, "progress");
        if (queue_) queue_->drive(*queue_, is_patient);
    }

    shared<call_queue>& queue() noexcept { return queue_; }
    const detail::observing& observing() const noexcept { return traits_.observing; }
    // The call that begins next was made at this time, and has waited for its turn.
    void set_time_made(time_point time) noexcept { made_ = time; }
    // This rank has been ready for the call that begins next since that time.
    void set_time_ready(time_point time) noexcept { arrivals_.set_ready(time); }
    // Who comes last, if an observer wants to know. For the thread that makes calls progress.
    const lateness& late() const noexcept { return arrivals_.late(); }
    bool threaded() const noexcept { return traits_.threaded; }
    // The rounds of calls that advance() has ended.
    std::uint64_t rounds() const noexcept { return rounds_; }
    // A rank that waits keeps no other rank from its processor.
    bool may_spin() const noexcept {
        return traits_.transport && traits_.transport->processors_each > 0;
    }
    bool is_broken() const noexcept { return is_broken_.load(); }
    call_record& record() const noexcept { return *calls_; }

    void set_unseen(std::exception_ptr failure) noexcept {
        if (!unseen_) unseen_ = std::move(failure);
    }

    [[gnu::cold]] void end(const char* reason) noexcept {
        if (std::exchange(closed_, true)) return;
        if (fork_.in_child()) return abandon_queue();
        if (destructor_limit() < stop_.limit.load_relaxed()) stop_at(destructor_limit());
        if (!take_until(destructor_limit() + tuning::time_to_give_up)) return abandon(reason);
        if (queue_) queue_->drain(*queue_);
        if (queue_) queue_->stop(*queue_);
        user().give_back();
        if (!is_broken_.load()) tell_untold();
        if (!is_broken_.load()) broken_ = text_or(no_memory_for_text, reason);  // for a plan
        is_broken_.store(true);
        leave(reason);
        resume_waiting();
    }

    // This rank gives the communicator up, and waits for no peer. A call under way ends where it
    // waits, within a millisecond, and tells the peers.
    [[gnu::cold]] void abort(std::string_view why) {
        if (user().is_inside()) user().refuse("abort", true);
        if (fork_.in_child()) throw_ended("abort");
        std::vector<int> me{rank()};
        if (!stop_for(text("it called abort()", why.empty() ? "" : ": ", why))) return;
        if (!take_until(now() + tuning::time_to_give_up)) return;
        if (queue_) queue_->drain(*queue_);
        if (!is_broken_.load()) {
            broken_ = text_or(no_memory_for_text, "rank ", rank(), ": ", stop_.text_of_abort);
            broken_by_ = std::move(me);
            is_broken_.store(true);
            if (traits_.transport) traits_.transport->give_up();
            leave(stop_.text_of_abort);
        }
        user().give_back();
    }

    // A call under way ends where it waits, and tells the peers this reason. False if there is one.
    [[gnu::cold]] bool stop_for(message reason) noexcept {
        if (is_broken_.load() || abort_has_begun_.exchange(true)) return false;
        stop_.text_of_abort = std::move(reason);
        stop_.aborted.store(true);
        return true;
    }

    // Waits until no thread is inside a call. It returns false after the limit, and for a thread
    // that would wait for itself.
    bool take_until(time_point limit) noexcept {
        if (user().is_inside()) return false;
        for (backoff wait(false); !user().try_take();)
            if (wait.pause() && now() > limit) return false;
        return true;
    }

    time_point destructor_limit() const noexcept {
        return now() + options_.destructor_timeout.nanoseconds;
    }
    // How long waits in calls are told: see long_wait.
    void tell_waits(std::int64_t after, message (*where)(void* self), void* self) noexcept {
        notice_.take(after, where, self);
    }
    // A call under way at that time gives the communicator up.
    void stop_at(time_point limit) noexcept { stop_.limit.store_relaxed(limit); }
    // The same, unless it is to be given up before.
    void stop_by(time_point limit) noexcept {
        for (time_point now = stop_.limit.load(); limit < now; now = stop_.limit.load())
            if (stop_.limit.compare_exchange(now, limit)) return;
    }
    // The limit of stop_by() is over. One of stop_at() that came since holds.
    void forget_stop(time_point limit) noexcept { stop_.limit.compare_exchange(limit, never); }

    // Refuses a call in a forked child, and a call on a communicator that was given up.
    void refuse_if_unusable(const operation& op) const {
        if (!fork_.is_usable() || is_broken_.load()) [[unlikely]]
            throw_unusable(op);
    }

    // The library under the backend ends: no call may reach it.
    void end_of_library() noexcept { fork_.end(); }

    bool in_forked_child() const { return fork_.in_child(); }
    void refuse_if_forked(const operation& op) const {
        if (fork_.in_child()) [[unlikely]]
            throw_unusable(op);
    }

    // The limit of a call that begins now. A wrong timeout refuses the call.
    time_point limit_for(operation& op, time_limit timeout) const {
        if (!timeout.is_given()) return patience_ == 0 ? never : now() + patience_;
        if (timeout.is_wrong()) refuse_timeout(op.entry, timeout);
        else if (timeout.is_time() && traits_.knows_no_timeout)
            op.entry.refuse(text("hvd: ", op.entry.label(), no_timeout));
        return limit_of(timeout);
    }

    // Runs a blocking call, after all that were made before it.
    static void run_now(session& self, operation& op, time_limit timeout) {
        call_driver& d = static_cast<call_driver&>(self);
        const session_use use(d.user_, &op.entry);
        if (d.queue_) d.refuse_in_driver(&op.entry);
        d.admit(op);
        if (d.queue_) d.queue_->drain(*d.queue_);
        if (d.unseen_) [[unlikely]]
            d.take_unseen(op, d.own_failure_);
        const time_point limit = d.limit_for(op, timeout);
        d.start(op);
        d.finish(op, limit);
    }

    // True if ranks compare their calls before data moves, so that one of them can refuse a call.
    bool compares_calls() const noexcept { return traits_.run_whole == nullptr; }

    // The following run on the thread that makes calls progress: the caller's or the progress
    // thread.

    // Does the first step of a call: the exchange of headers. A failure before that is told by the
    // header.
    void start(operation& op) {
        transport* const t = traits_.transport;
        try {
            if (__atomic_load_n(&traits_.observing.wanted, __ATOMIC_RELAXED) != 0)
                look_at_begin(op);
            const bool takes_lists = t != nullptr && t->choose(op);
            packs_ = op.pack != nullptr && !takes_lists;
            if (packs_ && op.in == nullptr && !op.entry.refused) provide_buffer(op);
            packed_ = packs_ && t != nullptr && t->carries && !op.entry.refused;
            if (packed_) pack(op);
            if (t != nullptr && !op.only_agree && !op.entry.refused) make_part(*t, work_, op);
        } catch (...) {
            own_failure_ = std::current_exception();
            forfeit(op, "it could not begin: ", own_failure_);
        }
        try {
            step_ = 0;
            notice_.said = false;
            if (t == nullptr) {
                calls_->begin(op.entry, op.element_bytes);
                return traits_.run_whole(traits_.endpoint, op, work_);
            }
            if (is_message(op.entry.kind)) begin_message(*t, op.entry);
            else t->begin(op);
        } catch (...) {
            if (t != nullptr) calls_->begin(op.entry, op.element_bytes);
            fail(op);
        }
        // It costs least here: the peers have the header already.
        calls_->begin(op.entry, op.element_bytes);
    }

    // Does the rest of a call that has begun.
    void finish(operation& op, time_point limit) {
        try {
            if (transport* const t = traits_.transport) {
                do
                    if (!t->ready())
                        t->while_waiting([&] { wait_ready(*t, op, limit, stop_, notice_); });
                while (!proceed(*t, op));
            }
            if (packs_) unpack(op);
        } catch (...) {
            fail(op);
        }
        ++calls_->moments;
        if (calls_->open_stamp != nullptr) [[unlikely]]
            std::exchange(calls_->open_stamp, nullptr)->left = now();
        if (__atomic_load_n(&traits_.observing.wanted, __ATOMIC_RELAXED) != 0) look_at_end(op);
    }

    // Advances a call as far as possible without waiting. It returns true when the call is over. If
    // nobody waits for it, the time that it takes is not told, and has no limit.
    bool advance(operation& op, time_point limit, bool is_awaited) {
        try {
            if (traits_.run_whole == nullptr) {
                transport& t = *traits_.transport;
                do {
                    if (!t.ready()) {
                        t.while_waiting([&] { look_while_waiting(t, op, limit, is_awaited); });
                        return false;
                    }
                    ++rounds_;
                    notice_.begin_round();
                    end_looks(t);
                } while (!proceed(t, op));
            }
            if (packs_) unpack(op);
        } catch (...) {
            fail(op);
        }
        ++calls_->moments;
        if (calls_->open_stamp != nullptr) [[unlikely]]
            std::exchange(calls_->open_stamp, nullptr)->left = now();
        if (__atomic_load_n(&traits_.observing.wanted, __ATOMIC_RELAXED) != 0) look_at_end(op);
        return true;
    }

protected:
    session_traits traits_;

private:
    // A call that waits without a thread: peers are asked about no more often than in wait_ready().
    [[gnu::cold]] void look_while_waiting(transport& t, const operation& op, time_point limit,
                                          bool is_awaited) {
        const time_point time = now();
        if (stop_.aborted.load()) throw_aborted(rank(), op.entry.label(), stop_);
        if (looked_at_ == 0) looked_at_ = time;
        if (time - looked_at_ >= tuning::check_interval) {
            looked_at_ = time;
            asked_ = true;
            if (t.hopeless()) t.fail(verdict::hopeless);
        }
        if (!is_awaited) return;
        notice_.record(t, time, looked_at_);
        if (time > limit) notice_.expire(t);
        if (limit == never || notice_.tells_all()) notice_.look(t, op, time);
    }
    void end_looks(transport& t) {
        looked_at_ = 0;
        if (std::exchange(asked_, false)) [[unlikely]]
            t.forget_processes();
    }

    // The progress thread does not exist in a forked child. Nobody waits for it, and its objects
    // are not destroyed, since that would wait too.
    void abandon_queue() noexcept {
        if (queue_) queue_->retain();
    }

    // The communicator is destroyed inside one of its calls. The call goes on, so its memory stays.
    void abandon(const char* reason) noexcept {
        retain();
        leave(reason);
    }

    // At the end: coroutines learn the results of their calls, which are complete. Further calls
    // are refused.
    void resume_waiting() noexcept {
        for (bool all = queue_.get() == nullptr; !all;) try {
                queue_->run_ready(*queue_);
                all = true;
            } catch (...) {  // thrown by a coroutine; nobody is there to get it
            }
    }

    // At the end there is no later call that could tell this rank of a failure.
    [[gnu::cold]] void tell_untold() noexcept {
        if (!traits_.transport) return;
        try {
            const message failure = traits_.transport->untold();
            if (!failure.empty()) write_line(failure);
        } catch (...) {  // no memory for a line
        }
    }

    void provide_buffer(operation& op) {
        std::vector<std::byte>& buffer = op.buffer != nullptr ? *op.buffer : work_.buffer;
        make_room(buffer, op.buffer_bytes);
        op.in = buffer.data();
        if (op.out == nullptr) op.out = buffer.data();
    }

    [[gnu::cold, gnu::noinline]] static void refuse_timeout(call_header& call, time_limit timeout) {
        call.refuse(text("hvd: ", call.label(), ": ", wrong_limit("timeout", timeout)));
    }

    void leave(std::string_view reason) noexcept {
        if (traits_.transport && !fork_.in_child()) traits_.transport->leave(reason);
    }

    void admit(operation& op) {
        if (!fork_.is_usable() || is_broken_.load()) [[unlikely]]
            throw_unusable(op);
        if (op.flaw.kind != flaw::none) [[unlikely]]
            tell_flaw(op, size());
        if (traits_.agrees_on_names) op.entry.compares_names = true;
    }

    [[gnu::cold, gnu::noinline]] void catch_up(collective kind) {
        refuse_in_driver(name_of(kind));
        queue_->drain(*queue_);
        throw_unseen();
    }

    [[gnu::cold, noreturn]] void throw_ended(std::string_view label) const {
        if (!fork_.in_child())
            throw usage_error(rank(), text("hvd: ", label, " on rank ", rank(),
                                           " after MPI_Finalize: calls end before it"));
        throw usage_error(rank(), text("hvd: ", label, " in a process forked from rank ", rank(),
                                       ": a communicator belongs to the process that made it"));
    }

    [[gnu::cold, noreturn]] void throw_unusable(const operation& op) const {
        if (!fork_.is_usable()) throw_ended(op.entry.label());
        throw peer_error(rank(),
                         text("hvd: ", op.entry.label(), " on rank ", rank(),
                              ": this communicator was given up after: ", broken_),
                         broken_by_);
    }

    void throw_unseen() {
        if (unseen_) [[unlikely]]
            std::rethrow_exception(std::exchange(unseen_, nullptr));
    }

    // The call throws an earlier exception that nobody has seen. It keeps its place in the order of
    // calls, since its peers make it. If ranks don't tell each other of refusals, it throws before
    // it is made.
    void take_unseen(operation& op, std::exception_ptr& kept) {
        if (traits_.run_whole != nullptr) throw_unseen();
        kept = std::exchange(unseen_, nullptr);
        forfeit(op, "an earlier call of this rank failed: ", kept);
    }

    // Called when a round is ready: begins the next round of this step or of the collective. It
    // returns true when the call is over.
    bool proceed(transport& t, operation& op) {
        if (t.next()) return false;
        if (step_ == 0) {
            if (is_message(op.entry.kind)) check_message(t, op.entry);
            else if (!t.agreed) check_call(t);
            if (op.only_agree) return keep_headers(op, t);
            if (packs_ && !packed_) t.guarded([&] { pack(op); });
        }
        return !begin_step(t, work_, op, ++step_);
    }

    void begin_message(transport& t, const call_header& mine) {
        ++calls_->messages;
        t.exchange_header(mine, mine.root);
    }

    static bool keep_headers(operation& op, const transport& t) {
        for (int r = 0; op.headers != nullptr && r < t.size(); ++r)
            copy_header(op.headers[r], *t.headers[r]);
        return true;
    }

    void pack(operation& op) {
        observe(op, observed_moment::pack);
        op.pack(op.self, op);
        observe(op, observed_moment::communicate);
    }

    void unpack(operation& op) {
        if (op.unpack == nullptr || op.only_agree) return;
        observe(op, observed_moment::unpack);
        op.unpack(op.self, op);
    }

    // Called in a handler. The transport decides if the communicator can go on. A plan's call is
    // made again, without this refusal.
    [[gnu::cold, noreturn]] void fail(operation& op) {
        const bool is_lost = traits_.transport && traits_.transport->lost;
        if (traits_.transport && !is_lost) traits_.transport->note_failure();
        if (is_lost) {
            keep_reason();
            is_broken_.store(true);
            leave(broken_);
            if (traits_.transport->found_death && traits_.note_death != nullptr)
                traits_.note_death();
        }
        // An elastic job that goes on without a rank writes it where it was asked to.
        if (notice_.expired || (is_lost && question && is_record_wanted()))
            tell_last_calls(*calls_);
        calls_->fail();
        if (!is_message(op.entry.kind)) arrivals_.forget();
        try {
            if (op.is_declined != nullptr && op.is_declined()) observe_declined(op);
            else observe(op, observed_moment::failure);
        } catch (...) {  // the failure of the call goes before that of its observer
        }
        take_back_not_finite(op.entry);
        if (op.failure == nullptr) throw;
        op.entry.refused = false;
        op.entry.text[0] = 0;
        const std::exception_ptr own = *std::exchange(op.failure, nullptr);
        own_failure_ = nullptr;
        if (is_of_earlier_call()) throw;
        std::rethrow_exception(own);
    }

    // A rank without memory for the reason gives the communicator up as well, and tells it.
    void keep_reason() noexcept {
        broken_by_ = peers_of(std::current_exception());
        broken_ = what_of(std::current_exception());
    }

    void look_at_begin(operation& op) {
        op.may_leave = false;
        if (traits_.observing.wants(observed_moment::arrivals) && !is_message(op.entry.kind))
            arrivals_.begin(op, quick_now());
        observe(op, observed_moment::begin);
        if (options_.check_finite || op.checks_finite) check_input(op);
    }

    void look_at_end(const operation& op) {
        if (traits_.observing.wants(observed_moment::arrivals) && traits_.transport &&
            !is_message(op.entry.kind))
            tell_arrivals(op);
        observe(op, observed_moment::end);
    }
    [[gnu::noinline]] void tell_arrivals(const operation& op) {
        const time_point time = quick_now();
        if (const std::int64_t* const took = arrivals_.end(traits_.transport->headers)) {
            event e = arrivals_.describe(rank(), time);
            e.took = took;
            traits_.observing.tell(e, observed_moment::arrivals);
        }
        arrivals_.keep(op, time);
    }

    void observe(const operation& op, observed_moment m) {
        if (traits_.observing.wants(m)) [[unlikely]]
            tell_observer(op, m);
    }
    [[gnu::noinline]] void tell_observer(const operation& op, observed_moment m) {
        const call_header& entry = op.entry;
        event e{name_of(entry.kind),
                std::string_view(entry.name),
                entry.id,
                std::size_t(entry.count) * op.element_bytes,
                rank(),
                size(),
                quick_now(),
                made_};
        if (m == observed_moment::begin && traits_.transport) traits_.transport->reached = false;
        if (m == observed_moment::end) describe_end(op, e);
        traits_.observing.tell(e, m);
        if (m == observed_moment::end || m == observed_moment::failure) made_ = 0;
    }
    // A call that was declined ends without a failure and without bytes.
    [[gnu::cold]] void observe_declined(const operation& op) {
        operation nothing;
        copy_header(nothing.entry, op.entry);
        nothing.entry.count = 0;
        nothing.element_bytes = op.element_bytes;
        nothing.only_agree = true;
        observe(nothing, observed_moment::end);
    }
    // How much moved in a call that has ended well, and how.
    void describe_end(const operation& op, event& e) {
        const collective kind = op.entry.kind;
        e.total_bytes = e.bytes;
        if (kind == collective::allgather || kind == collective::gather) {
            e.total_bytes = 0;
            for (const std::size_t count : work_.counts) e.total_bytes += count * op.element_bytes;
        }
        if (op.only_agree || e.total_bytes == 0) return;
        const transport* const t = traits_.transport;
        e.path = t != nullptr ? t->path() : data_path::library;
    }

    fork_guard fork_;
    bool packs_ = false, packed_ = false;  // for the call under way
    std::size_t step_ = 0;
    std::uint64_t rounds_ = 0;
    time_point made_ = 0;  // when the call under way was made, if it is asynchronous
    stop_signs stop_;
    const kept_record<call_record> record_;
    call_record* const calls_;
    arrivals arrivals_;
    atomic<bool> abort_has_begun_{false};
    long_wait notice_;
    const std::int64_t patience_;  // of calls without a timeout of their own; 0: for ever
    time_point looked_at_ = 0;     // without a thread: when a waiting call last looked; 0: not yet
    bool asked_ = false;

    message broken_;              // the reason; it is written once, before the flag
    std::vector<int> broken_by_;  // the ranks that it names
    atomic<bool> is_broken_{false};
    std::exception_ptr unseen_;
    std::exception_ptr own_failure_;  // for which the call under way is forfeited
    shared<call_queue> queue_;
};

}  // namespace hvd::inline v0::detail
