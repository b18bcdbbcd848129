// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <functional>
#include <memory>
#include <string>

#include "commands.hpp"
#include "negotiation/coordinator.hpp"
#include "negotiation/negotiating_rank.hpp"
#include "prediction.hpp"
#include "submitted_tensors.hpp"
#include "unit_runner.hpp"

namespace hvd::inline v0::detail {

// A retune of an engine, which is submitted like a tensor.
struct retune_call : queued {
    operation none{};
    engine_tuning values;
    message in_flight;  // the tensors of this rank when it was submitted

    void check(int rank) const {
        if (!in_flight.empty())
            throw usage_error(rank, text("hvd: rank ", rank, ": an engine is retuned between ",
                                         "steps; in flight are ", in_flight));
        check_engine_tuning(values, rank);
    }
};

// Runs the units of an engine, on one thread at a time, the driver: the engine's own thread, or one
// that waits for a tensor of a predicted step.
class unit_driver : public submitted_tensors {
public:
    int size() const { return runner_.size(); }
    session& data() { return *session_; }
    unit_runner& runner() { return runner_; }
    const engine_options& options() const { return options_; }

    // The thresholds in force.
    engine_tuning tuned() {
        const lock_guard lock(mutex_);
        return tuned_;
    }

    // Reductions that this rank can make after it has joined.
    void learn(const std::vector<known_reduction>& usual) {
        const lock_guard lock(mutex_);
        usual_ = usual;
    }

    // The first reason for the end of the engine counts. It is known before the communicator is
    // closed, whose driver would give a vaguer one.
    void set_reason(const std::exception_ptr& failure) {
        const lock_guard lock(mutex_);
        if (!ended_) ended_ = failure;
    }

    // Ends the engine: all that is pending fails, and further calls throw the same.
    void fail(const std::exception_ptr& failure) noexcept {
        set_reason(failure);
        std::exception_ptr reason;
        {
            const lock_guard lock(mutex_);
            reason = ended_;
            if (join_) join_->finish(reason);
            join_ = {};
            end_prediction();
        }
        for (pending_tensor t; take_waiting(t);) complete(t, reason);
        completions_.announce();
    }

    // ---- for device tensors ---------------------------------------------------------------------

    // Called before the first tensor comes.
    void use(device_units devices) {
        devices.end_calls_if(devices.self.get(), [this] { return reason_to_end(); });
        runner_.use(std::move(devices));
    }
    // The other ranks learn that the device tensors of this one can't go on.
    void lose_devices(const std::exception_ptr& why) noexcept {
        const lock_guard lock(mutex_);
        if (ended_) return;  // then there may be nobody to wake
        if (commands_.leave.empty()) {
            commands_.leave = text_or("its device tensors failed", "rank ", rank(),
                                      ": its device tensors failed: ",
                                      why ? what_of(why) : message::fixed("no reason was given"));
            if (why) commands_.culprits = peers_of(why);
        }
        runner_.driver().stop_at(now());  // the engine's thread may wait in a call
        wake_();
    }
    // The engine's thread calls `look` while it is inside a call: true if the engine ends.
    void look_out_by(std::function<bool()> look) {
        const lock_guard lock(mutex_);
        look_out_ = std::move(look);
        looks_out_ = session_user::this_thread();
    }

    // ---- for the thread of the engine -----------------------------------------------------------

    engine_commands take_commands() {
        const lock_guard lock(mutex_);
        return std::exchange(commands_, {});
    }

    // An observer is told of the ranks that have a tensor, as far as this one hears of them.
    void listen_to(negotiating_rank& ranks) {
        if (!observing_.wants(observed_moment::rank_ready)) return;
        ranks.listener = this;
        ranks.on_child_ready = [](void* self, const std::string& name, int rank) {
            const unit_driver& here = *static_cast<unit_driver*>(self);
            here.observing_.tell({"", name, dtype::byte, 0, here.rank(), here.size(), quick_now()},
                                 observed_moment::rank_ready, rank);
        };
    }

    bool is_predicting() const noexcept { return predicting_.load(); }

    // All ranks expect this step from now on.
    void begin_prediction(std::vector<agreed_unit> units) {
        const lock_guard lock(mutex_);
        commands_.submitted.clear();
        predicted_ = std::make_shared<prediction>(std::move(units));
        predicting_.store(true);
        if (join_) decline_ = message::fixed(joins);
        if (done_) decline_ = message::fixed(no_more);
        pending_.for_each(
            [this](const std::string& name, const pending_tensor& t) { arrive(name, t); });
    }

    // Runs what is there of the predicted step, unless another thread does.
    void drive_prediction(int threads) {
        {
            const lock_guard lock(mutex_);
            if (!begins_to_drive()) return;
        }
        drive(threads);
    }

    // Runs a unit that all ranks have agreed on just now.
    void run_agreed(const agreed_unit& unit, int threads) {
        {
            const lock_guard lock(mutex_);
            claim(unit);
        }
        run_claimed(unit, threads);
    }

    // Everything that is pending is submitted once more.
    void resubmit() {
        const lock_guard lock(mutex_);
        commands_.submitted = pending_.in_order();
        commands_.join = bool(join_);
    }

    // If the predicted step has not gone on for long, though somebody wants it to, this rank
    // declines. It returns the time after which to look again.
    std::int64_t watch_prediction() {
        const lock_guard lock(mutex_);
        if (!predicted_ || driving_ || (pending_.empty() && !join_)) {
            waited_for_.store(false);
            return never_again;
        }
        const std::uint64_t seen = submissions_ + runs_;
        const time_point time = now();
        if (seen != watched_) {
            watched_ = seen;
            watched_since_ = time;
        }
        const std::int64_t patience =
            completions_.anybody_sleeps() || coroutines_.first_call() != nullptr ? short_patience
                                                                                 : long_patience;
        if (time - watched_since_ < patience) return watched_since_ + patience - time;
        decline_ = message::fixed("it waits for a tensor that is not the next one");
        return 0;
    }

    // The timeout of a tensor is over during a prediction. A unit under way keeps to it by itself.
    void expire_prediction() {
        const lock_guard lock(mutex_);
        if (!predicted_ || driving_ || !decline_.empty()) return;
        decline_ = message::fixed("the timeout of a tensor is over");
    }

    // Why a unit gave the communicator up; null if none did.
    std::exception_ptr failure_of_unit() {
        const lock_guard lock(mutex_);
        return unit_failure_;
    }

    static constexpr std::int64_t never_again = INT64_MAX;

protected:
    unit_driver(shared<session> data, bool one_node, const engine_options& options,
                std::function<void()> wake)
        : submitted_tensors(static_cast<call_driver&>(*data)),
          runner_(data, one_node, options),
          options_(options),
          session_(std::move(data)),
          wake_(std::move(wake)),
          tuned_{options.fusion_threshold, options.cycle_time, options.largest_first,
                 options.prediction, session_->options().tuning} {
        counts_.rank = session_->rank();
        counts_.size = session_->size();
        runner_.driver().tell_waits(
            stall_warn_of(options),
            [](void* self) { return static_cast<unit_driver*>(self)->tell_wait(); }, this);
    }
    ~unit_driver() {
        runner_.use({});  // while all that their calls may ask is there
    }

    static constexpr const char *joins = "it has joined", *no_more = "it has destroyed its engine";

    void help(queued& call) {
        if (!call.done()) drive_prediction(1);
    }

    // A thread is about to sleep: the engine's own watches over the prediction meanwhile.
    void ask_for_patience() {
        if (predicting_.load() && !waited_for_.exchange(true)) wake_();
    }

    // ---- with the lock held ---------------------------------------------------------------------

    // Returns true if somebody must wake the engine's thread.
    bool take_note(const std::string& name, const pending_tensor& entry) {
        if (entry.limit < stop_ && (driving_ || running_ != nullptr))
            runner_.driver().stop_by(stop_ = entry.limit);
        if (!predicted_) {
            commands_.submitted.emplace_back(name, entry.mine);
            return true;
        }
        arrive(name, entry);
        return !driving_ && (predicted_->ready() || !decline_.empty() || pending_.size() == 1);
    }

    void arrive(const std::string& name, const pending_tensor& entry) {
        if (!predicted_->arrive(name, entry.mine) && decline_.empty())
            decline_ = text_or("a tensor is not part of it, or has changed", "'", name,
                               "' is not part of it, or has changed");
    }

    unit_runner runner_;
    const engine_options options_;
    shared<session> session_;
    std::function<void()> wake_;

    // The lock of the submitted tensors is held for all of the following.
    engine_commands commands_;
    std::shared_ptr<prediction> predicted_;  // null: the ranks negotiate. A driver keeps it alive
    message decline_;                        // why this rank declines the prediction, if it does
    bool done_ = false;                      // this rank submits nothing more
    engine_tuning tuned_;
    std::uint64_t submissions_ = 0;

private:
    message reason_to_end() {
        {
            const lock_guard lock(mutex_);
            if (ended_) return what_of(ended_);
            if (!commands_.leave.empty()) return text_or(no_memory_for_text, commands_.leave);
            if (!look_out_ || looks_out_ != session_user::this_thread()) return {};
        }
        return look_out_() ? reason_to_end() : message();
    }

    static constexpr std::int64_t short_patience = tuning::millisecond;
    static constexpr std::int64_t long_patience = 100 * tuning::millisecond;

    void end_prediction() {
        predicted_.reset();
        predicting_.store(false);
        decline_ = {};
    }

    bool begins_to_drive() {
        if (!predicted_ || driving_ || !(predicted_->ready() || !decline_.empty())) return false;
        return driving_ = true;
    }

    // The next calls end by the timeouts of all that is pending; for later tensors: take_note().
    void hold_to_timeouts() {
        runner_.driver().forget_stop(std::exchange(stop_, never));
        runner_.end_by(pending_.first_limit());
    }

    // Where there is no memory for that, nothing has changed.
    void claim(const agreed_unit& unit) {
        finished_.reserve(unit.size());
        if (!usual_.empty()) runner_.learn(usual_);
        usual_.clear();
        const time_point last = pending_.claim(unit, claimed_);
        if (last != 0) runner_.driver().set_time_ready(last);
        hold_to_timeouts();
        running_ = &unit;
        begun_ = predicted_ ? last : now();  // a predicted unit begins with its last tensor
    }

    // ---- for the driver -------------------------------------------------------------------------

    // Runs units of the predicted step until the next one is not there yet. The thread may be one
    // that waits for a tensor: what fails here ends the engine, and is thrown by its requests.
    void drive(int threads) noexcept try {
        for (;;) {
            std::shared_ptr<prediction> step;
            message reason;
            {
                const lock_guard lock(mutex_);
                if (!predicted_ || !(predicted_->ready() || !decline_.empty()))
                    return rest_from_driving();
                reason = std::move(decline_);
                step = predicted_;
                if (reason.empty()) claim(step->next());
                else hold_to_timeouts();
            }
            if (!reason.empty() ? decline(reason) : run_predicted(step->next(), threads)) continue;
            return stop_driving();
        }
    } catch (...) {
        const lock_guard lock(mutex_);
        driving_ = false;
        give_up(std::current_exception());
    }

    // The engine's thread watches over the tensors that wait from now on.
    void rest_from_driving() {
        driving_ = false;
        if (!pending_.empty() || join_) wake_();
    }

    // Both return false if the prediction is over.
    bool decline(std::string_view reason) {
        try {
            runner_.decline(reason);
        } catch (const error& e) {
            if (!unit_runner::is_decline(e)) give_up_if_broken();
        } catch (...) {
            give_up_if_broken();
        }
        return false;
    }
    bool run_predicted(const agreed_unit& unit, int threads) {
        bool declined = false;
        std::exception_ptr failure;
        try {
            runner_.confirm(unit, threads);
            tell_ready(unit, true);
            runner_.run(unit, claimed_, threads);
        } catch (const error& e) {
            declined = unit_runner::is_decline(e);
            failure = std::current_exception();
        } catch (...) {
            failure = std::current_exception();
        }
        if (declined) {
            const lock_guard lock(mutex_);
            running_ = nullptr;
            pending_.unclaim(unit);
            return false;
        }
        complete_unit(unit, std::move(failure));
        return is_predicted();
    }

    bool is_predicted() {
        const lock_guard lock(mutex_);
        return predicted_ != nullptr;
    }

    // A rank has declined: all ranks negotiate again.
    void stop_driving() {
        {
            const lock_guard lock(mutex_);
            driving_ = false;
            if (!predicted_) return;  // the engine ends
            end_prediction();
            ++counts_.declined;
            commands_.submitted = pending_.in_order();
            commands_.restart = true;
            commands_.units = std::exchange(units_, 0);
            commands_.join = bool(join_);
        }
        wake_();
    }

    void run_claimed(const agreed_unit& unit, int threads) {
        std::exception_ptr failure;
        try {
            tell_ready(unit, false);
            if (is_retune(unit.front().signature))
                retune(static_cast<retune_call&>(*claimed_.front()));
            else runner_.run(unit, claimed_, threads);
        } catch (...) {
            failure = std::current_exception();
        }
        complete_unit(unit, std::move(failure));
    }

    // All ranks are here, and no unit runs: the thresholds change on all ranks or on none.
    void retune(const retune_call& call) {
        const engine_tuning& to = call.values;
        call_driver& driver = runner_.driver();
        const auto values = [&](auto say) { say_engine_tuning(to, say); };
        call_header mine = agreement_header("the retune of an engine");
        const time_point limit = limit_of(runner_.timeout());
        const auto prepare = [&] {
            call.check(rank());
            mine.content = content_of_values(values);
        };
        agree_on(driver, mine, limit, prepare, values);
        if (to.tuning != driver.options().tuning) driver.retune(to.tuning, limit);
        const lock_guard lock(mutex_);
        tuned_ = to;
    }

    void complete_unit(const agreed_unit& unit, std::exception_ptr failure) noexcept {
        try {
            tell_unit(failure ? observed_moment::incomplete : observed_moment::complete, unit);
        } catch (...) {
            if (!failure) failure = std::current_exception();
        }
        {
            const lock_guard lock(mutex_);
            ++runs_;
            running_ = nullptr;
            const bool is_broken = runner_.broken();
            if (is_broken) give_up(failure ? failure : broken());
            // Tensors whose unit gave the communicator up learn why from the engine's thread.
            const bool learns = is_broken && failure;
            if (learns && !ended_) pending_.unclaim(unit);
            else pending_.take(unit, finished_);
            if (learns && ended_) failure = ended_;
            count_unit(counts_, finished_, failure != nullptr, begun_);
            if (predicted_) {
                if (predicted_->advance()) ++counts_.predicted_steps;
                ++counts_.predicted_units;
                ++units_;
            }
        }
        complete_all(finished_, std::move(failure));
        finished_.clear();
    }
    // The communicator was given up. The engine's thread, which may know a better reason, ends the
    // engine.
    void give_up(const std::exception_ptr& failure) noexcept {
        end_prediction();
        if (ended_) return;
        if (!unit_failure_) unit_failure_ = failure;
        wake_();
    }

    // Tells an observer of those tensors of a unit that this rank has submitted.
    // A predicted one is ready when it is submitted. The work of a device tensor is not over yet.
    void tell_unit(observed_moment m, const agreed_unit& unit, bool is_predicted = false) const {
        if (observing_.call == nullptr) return;
        const time_point time = quick_now();
        for (std::size_t i = 0; i < unit.size(); ++i) {
            const signature& s = unit[i].signature;
            queued* const call = claimed_[i];
            if (call == nullptr) continue;
            if (m == observed_moment::ready) call->ready = is_predicted ? call->made : time;
            else if (m == observed_moment::complete && s.where == tensor_memory::device) continue;
            tell(m, unit[i].name, s, is_predicted ? call->made : time, call->made);
        }
    }

    // The others wait for this rank in the unit, so that they learn if an observer throws.
    void tell_ready(const agreed_unit& unit, bool is_predicted) {
        if (observing_.call == nullptr) return;
        runner_.prepare(unit.front().signature.where,
                        [&] { tell_unit(observed_moment::ready, unit, is_predicted); });
    }

    // A rank waits long in a call of the driver, which says so. It returns the place.
    [[gnu::cold]] message tell_wait() {
        count([](engine_statistics& s) { ++s.stalls_warned; });
        return running_ != nullptr ? label_of(*running_) : message("a predicted step");
    }

    std::exception_ptr broken() const noexcept {
        return made_or_thrown([&] {
            return peer_error(
                rank(),
                text("hvd: rank ", rank(), ": the communicator of this engine was given up"), {});
        });
    }
    void give_up_if_broken() {
        const lock_guard lock(mutex_);
        if (runner_.broken()) give_up(std::current_exception());
    }

    bool take_waiting(pending_tensor& t) noexcept {
        t = {};  // without the lock: what the user gave ends with it
        const lock_guard lock(mutex_);
        t = pending_.take_waiting();
        if (t.call) count_failed(t);
        return bool(t.call);
    }

    // The driver's: the unit that runs, its calls and its begin.
    const agreed_unit* running_ = nullptr;
    std::vector<queued*> claimed_;
    std::vector<pending_tensor> finished_;  // has room for those of the unit
    time_point begun_ = 0;

    // The lock is held for these.
    bool driving_ = false;                // a thread runs units of the prediction
    time_point stop_ = never;             // for a call under way, by a tensor that came meanwhile
    std::vector<known_reduction> usual_;  // for the runner
    std::exception_ptr unit_failure_;     // why the communicator was given up
    std::function<bool()> look_out_;      // the engine's thread, which looks by it
    session_user::id looks_out_ = session_user::nobody;
    std::uint64_t runs_ = 0, units_ = 0;  // units of the prediction
    std::uint64_t watched_ = 0;           // what watch_prediction() saw last, and since when
    time_point watched_since_ = 0;

    atomic<bool> predicting_{false}, waited_for_{false};
};

}  // namespace hvd::inline v0::detail
