// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "core.hpp"
#include "link_tree.hpp"
#include "negotiation/negotiator.hpp"

namespace hvd::inline v0::detail {

// The thread of an engine. It negotiates with other ranks, and runs what they have agreed on. It
// sleeps while nothing happens. It begins when all ranks have theirs.
class engine_thread {
public:
    // `cpu` is the processor of the thread; -1 leaves the choice to the system.
    engine_thread(shared<engine_core> core, link_tree& links, int cpu)
        : core_(std::move(core)),
          links_(links),
          cpu_(cpu),
          negotiator_(core_->rank(), core_->size(), settings(core_->options(), links.fanout())),
          stalls_(stall_warn_of(core_->options()), core_->options().stall_abort.time().nanoseconds),
          no_memory_(text("rank ", core_->rank(), ": its engine failed, and no memory is left")),
          farewell_(last_message(no_memory_, {})),
          thread_([this] {
              if (may_begin()) serve();
          }) {
        if (!thread_)
            throw usage_error(core_->rank(), text("hvd: rank ", core_->rank(),
                                                  ": the system gives no thread to an engine"));
    }
    engine_thread(const engine_thread&) = delete;
    engine_thread& operator=(const engine_thread&) = delete;
    ~engine_thread() { let(begin::not_at_all); }

    void start() { let(begin::at_once); }

private:
    enum class begin { unknown, at_once, not_at_all };
    void let(begin when) {
        const lock_guard lock(mutex_);
        if (begin_ == begin::unknown) begin_ = when;
        changed_.notify_all();
    }
    bool may_begin() {
        const lock_guard lock(mutex_);
        while (begin_ == begin::unknown) changed_.wait(mutex_);
        return begin_ == begin::at_once;
    }

    // While this thread runs a unit, another one of this rank computes.
    static constexpr int threads = 2;
    // The time in which ranks answer who has not submitted a tensor.
    static constexpr std::int64_t answer_time = 500 * tuning::millisecond;
    static constexpr std::int64_t overdue_look = 20 * tuning::millisecond;

    static negotiation_options settings(const engine_options& o, int fanout) {
        return {.fanout = fanout,
                .fusion_threshold = o.fusion_threshold,
                .largest_first = o.largest_first,
                .cache_capacity = o.cache_capacity,
                .predict = o.prediction};
    }

    void serve() noexcept {
        is_hvd_thread = true;
        core_->listen_to(negotiator_);
        if (cpu_ >= 0 && !processor_set::of_this_thread().only(cpu_).keep_this_thread())
            write_line(text_or("hvd: an engine can't run on its processor", "hvd: rank ",
                               core_->rank(), " can't run on processor ", cpu_));
        core_->look_out_by([this] { return ends_meanwhile(); });
        try {
            while (!over_) turn();
        } catch (...) {
            forfeit(std::current_exception());
        }
        links_.close();
    }

    void turn() {
        links_.wait(next_look());
        receive();
        submit();
        decide();
        flush();
        for (decision d; !over_ && negotiator_.next_decision(d);) {
            carry_out(d);
            end_if_broken();
            submit();
            decide();
            flush();
        }
        if (core_->is_predicting()) {
            next_patience_ = core_->watch_prediction();
            core_->drive_prediction(threads);
        }
        end_if_broken();
        watch_stalls();
    }

    void receive() {
        for (link_tree::received r; links_.next(r);) negotiator_.receive(r.from, r.bytes);
        for (link_tree::lost l; links_.next_lost(l);) negotiator_.lose(l.neighbour, l.reason);
    }

    // Called while this thread waits inside a call.
    bool ends_meanwhile() {
        const decision* const end = end_decision();
        if (end != nullptr) core_->set_reason(ending(*end));
        return end != nullptr;
    }
    // Null if this rank has not heard of an end.
    const decision* end_decision() {
        links_.wait(0);
        receive();
        return negotiator_.end_to_come();
    }

    void submit() {
        const engine_commands commands = core_->take_commands();
        if (commands.restart) negotiator_.restart(commands.units);
        for (const auto& [name, mine] : commands.submitted) negotiator_.submit(name, mine);
        if (commands.join) negotiator_.join();
        if (!commands.leave.empty())  // the better reason
            negotiator_.leave(commands.leave, rank_set(commands.culprits));
        if (commands.bye) negotiator_.bye();
    }

    // Rank 0 may wait a while for more tensors, which travel together then.
    void decide() {
        const std::int64_t cycle = core_->tuned().cycle_time.nanoseconds;
        next_decision_ = engine_core::never_again;
        if (!negotiator_.has_ready()) return;
        if (cycle > 0) {
            const time_point time = now();
            if (cycle_ends_ == 0) cycle_ends_ = time + cycle;
            if (time < cycle_ends_) {
                next_decision_ = cycle_ends_ - time;
                return;
            }
            cycle_ends_ = 0;
        }
        negotiator_.decide();
    }

    void flush() {
        bool sent = false;
        for (negotiator::outgoing o; negotiator_.next_message(o); sent = true)
            links_.send(o.to, o.bytes);
        if (sent) links_.flush();
        count_work();
    }

    // The counts of a tensor are there before its request is complete.
    void count_work() {
        const negotiating_rank::work& w = negotiator_.counted();
        if (w.cache_hits == told_.cache_hits && w.cache_misses == told_.cache_misses &&
            w.messages_sent == told_.messages_sent &&
            w.messages_received == told_.messages_received)
            return;
        told_ = w;
        core_->count([&](engine_statistics& s) {
            s.cache_hits = w.cache_hits;
            s.cache_misses = w.cache_misses;
            s.messages_sent = w.messages_sent;
            s.messages_received = w.messages_received;
        });
    }

    // The communicator was given up in a unit, perhaps since a rank left that has told why. Ranks
    // that took no part in the unit learn of it, too.
    void end_if_broken() {
        const std::exception_ptr failure = core_->failure_of_unit();
        if (over_ || !failure) return;
        submit();
        if (const decision* const end = end_decision()) return finish(*end);
        end_by(failure,
               text_or(no_memory_for_text, "rank ", core_->rank(), " gave up: ", what_of(failure)));
    }

    // Ends the engine on all ranks, for a reason of this one.
    void end_by(const std::exception_ptr& failure, const message& reason) {
        core_->set_reason(failure);  // also if there is no memory to tell it
        negotiator_.leave(reason, rank_set(peers_of(failure)));
        flush();
        over_ = true;
        end_core(failure, reason);
    }

    // This thread failed, perhaps inside a word to another rank, and perhaps without memory. So the
    // outbox is not sent. The others hear the reason, or see that the links end.
    void forfeit(const std::exception_ptr& failure) noexcept {
        over_ = true;
        message reason;
        std::vector<std::byte> words;
        try {
            reason = text("rank ", core_->rank(), ": its engine failed: ", what_of(failure));
            words = last_message(reason, rank_set(peers_of(failure)));
        } catch (...) {
            reason = std::move(no_memory_);
            words = std::move(farewell_);
        }
        links_.send_last(words);
        end_core(failure, reason);
    }

    std::vector<std::byte> last_message(std::string_view reason, const rank_set& culprits) const {
        message_writer words(outbox::always);
        write_end(words, end_of(core_->rank(), reason, culprits));
        return words.take();
    }

    void end_core(const std::exception_ptr& failure, const message& reason) noexcept {
        core_->set_reason(failure);
        core_->stop_calls_at(now());
        core_->data().close(reason.c_str());
        core_->runner().give_up_devices(reason);
        core_->fail(failure);
    }

    void carry_out(decision& d) {
        switch (d.kind) {
            case decision::what::run:
                core_->run_agreed(d.units.front(), threads);
                return negotiator_.retune(core_->tuned());
            case decision::what::predict: return core_->begin_prediction(std::move(d.units));
            case decision::what::refuse: return core_->refuse(d.name, refusal(d));
            case decision::what::joined: return core_->all_joined(d.rank);
            case decision::what::reset: return core_->resubmit();
            case decision::what::missing: return report(d);
            case decision::what::ended: return finish(d);
        }
    }

    void finish(const decision& end) {
        flush();
        over_ = true;
        if (end.rank < 0) core_->fail(ending(end));
        else end_core(ending(end), message(end.text));
    }

    // It names the other ranks for whose sake the engine ends, or else the rank that ends it.
    std::exception_ptr ending(const decision& end) const {
        const int me = core_->rank();
        std::vector<int> ranks = end.ranks.list();
        std::erase(ranks, me);
        if (ranks.empty() && end.rank >= 0 && end.rank != me) ranks.push_back(end.rank);
        const std::string_view why =
            end.rank < 0 ? "all ranks have ended this engine" : std::string_view(end.text);
        return std::make_exception_ptr(peer_error(me, text("hvd: ", why), std::move(ranks)));
    }

    std::exception_ptr refusal(const decision& d) const {
        const int me = core_->rank();
        if (d.differs == field::none)
            return std::make_exception_ptr(peer_error(
                me, text("hvd: '", d.name, "' on rank ", me, ": ", d.text), d.ranks.list()));
        std::vector<mismatch_error::entry> values;
        for (const auto& [rank, value] : d.values) values.emplace_back(rank, value);
        try {
            throw_mismatch(me, text("'", d.name, "'"), field_names[int(d.differs)],
                           {values.data(), values.size()}, table_style::one_line);
        } catch (...) {
            return std::current_exception();
        }
    }

    // ---- tensors that some ranks have not submitted -----------------------------------------

    void watch_stalls() {
        next_stall_look_ = engine_core::never_again;
        if (over_) return;
        close_questions();
        const time_point time = now();
        const bool predicts = core_->is_predicting();
        const stall_watch::tensor urgent = core_->most_urgent();
        if (predicts && time >= urgent.at) core_->expire_prediction();
        const auto found = stalls_.look(core_->oldest(), urgent, time, !predicts);
        switch (found.what) {
            case stall_watch::verdict::ask: ask(found.name); break;
            case stall_watch::verdict::tell: tell_stall(found.name); break;
            case stall_watch::verdict::give_up: return give_up(found.name);
            case stall_watch::verdict::rest: break;
        }
        // During a prediction an overdue tensor waits for a rank that declines it.
        const bool is_overdue = predicts && found.again <= time;
        look_again_at(is_overdue ? time + overdue_look : found.again, time);
    }

    // Ranks that do not answer in time, do not. Those further down have less of it.
    void close_questions() {
        int depth = 1;
        for (int r = core_->rank(); r > 0; ++depth) r = parent_of(r, links_.fanout());
        const time_point time = now();
        look_again_at(negotiator_.look_at_questions(time, answer_time / depth), time);
        flush();
    }

    void look_again_at(time_point when, time_point time) {
        if (when == never) return;
        next_stall_look_ =
            std::min(next_stall_look_, std::max<std::int64_t>(when - time, tuning::millisecond));
    }

    void ask(const std::string& name) {
        negotiator_.ask_missing(name);
        flush();
        links_.wake();  // the answer may be there
    }

    void report(const decision& d) {
        if (stalls_.note_answer(d.name, d.text, d.ranks)) tell_stall(d.name);
    }

    void tell_stall(std::string_view name) {
        core_->count([](engine_statistics& s) { ++s.stalls_warned; });
        const std::int64_t waited = (now() - stalls_.since()) / tuning::millisecond;
        write_line(text("hvd: rank ", core_->rank(), " has waited ", double(waited) / 1000,
                        " s for '", name, "': ", stalls_.answer(),
                        core_->runner().driver().late().remark()));
    }

    void give_up(const std::string& name) {
        core_->count([](engine_statistics& s) { ++s.stalls_aborted; });
        core_->tell_last_tensors();
        const message why = text("rank ", core_->rank(), " gives up: '", name,
                                 "' was not submitted on all ranks in time: ", stalls_.answer());
        end_by(std::make_exception_ptr(
                   timeout_error(core_->rank(), text("hvd: ", why), stalls_.missing().list())),
               why);
    }

    std::int64_t next_look() {
        const std::int64_t patience = std::exchange(next_patience_, engine_core::never_again);
        const std::int64_t next = std::min({patience, next_stall_look_, next_decision_});
        return next;
    }

    shared<engine_core> core_;
    link_tree& links_;
    const int cpu_;
    negotiator negotiator_;
    stall_watch stalls_;
    message no_memory_;                // the reason for the end where there is none for another
    std::vector<std::byte> farewell_;  // tells it
    bool over_ = false;
    std::int64_t next_patience_ = engine_core::never_again;
    std::int64_t next_stall_look_ = engine_core::never_again;
    negotiating_rank::work told_;  // the counts that the core has
    time_point cycle_ends_ = 0;
    std::int64_t next_decision_ = engine_core::never_again;
    mutex mutex_;
    condition changed_;
    begin begin_ = begin::unknown;
    thread thread_;  // last: it uses all of the above, and its destructor joins it
};

}  // namespace hvd::inline v0::detail
