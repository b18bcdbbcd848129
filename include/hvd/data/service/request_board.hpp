// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "../../platform/clock.hpp"
#include "../../platform/thread.hpp"
#include "../../protocol/agreement.hpp"
#include "../batch_plan.hpp"
#include "batch_arena.hpp"
#include "byte_buffer.hpp"
#include "claim_book.hpp"
#include "service_statistics.hpp"

namespace hvd::inline v0::detail {

// The answer to a request: a batch, or a failure, as bytes. They came by the connection or lie in
// a slot.
struct service_answer {
    bool is_failure = false;
    byte_buffer buffer;
    batch_arena::slot slot;

    std::span<const std::byte> bytes() const {
        return slot ? slot.contents() : std::span<const std::byte>(buffer);
    }
};

// A request for a batch of the run of that number.
struct open_request {
    std::uint64_t run = 0, step = 0;
    data::batch_request batch;
};

// The requests of a trainer for the next batches of its epoch. At most `ahead` of them are open or
// answered before they are taken. Those of a broken connection, or of a worker that is late, are
// asked again, before all others.
class request_board {
public:
    // Begins a run: the batches from `first` on. Those of an earlier run are dropped. With claims,
    // whose run has that number, they are those of all ranks, and this one gets some. Returns the
    // number of the run.
    std::uint64_t begin(const data::batch_request& first, const data::batch_plan& plan,
                        std::uint64_t steps, std::uint64_t of_claims = 0) {
        const lock_guard held(mutex_);
        earlier_ = with_earlier(current());
        ++run_;
        first_ = first;
        plan_ = plan;
        steps_ = steps;
        taken_ = asked_ = wanted_ = 0;
        claims_ = plan.share == data::batch_share::claims;
        claimed_.clear();
        returned_ = done_ = 0;
        has_all_ = false;
        if (claims_) {
            asks_ = {of_claims, first.seed, first.epoch, first.first, steps};
            steps_ = 0;
        }
        again_.clear();
        slots_.clear();
        slots_.resize(plan.ahead > 0 ? plan.ahead : 1);
        is_asked_.assign(slots_.size(), false);
        asks_alone_ = plan.ahead == 0;
        failure_ = nullptr;
        counts_ = {};
        began_ = now();
        waited_ = 0;
        changed_.notify_all();
        return run_;
    }

    data::service_statistics statistics() {
        const lock_guard held(mutex_);
        return current();
    }
    // Those of all runs.
    data::service_statistics totals() {
        const lock_guard held(mutex_);
        return with_earlier(current());
    }

    // The next request for worker `mine` of `of` that nobody has made, if there is room. Each step
    // belongs to one worker, so that trainings which share a service ask the same one for it. A
    // worker gets those of others if they still lie there in the earlier half of the room.
    std::optional<open_request> next(std::size_t mine = 0, std::size_t of = 1) {
        const lock_guard held(mutex_);
        if (!again_.empty()) {
            const auto least = std::min_element(again_.begin(), again_.end());
            const std::uint64_t step = *least;
            again_.erase(least);
            return request(step);
        }
        const std::uint64_t room = slots_.size(), end = taken_ + room,
                            most = std::min(steps_, asks_alone_ ? wanted_ : end);
        std::uint64_t found = most;
        for (std::uint64_t step = taken_; step < most; ++step) {
            if (is_asked_[step % room]) continue;
            if (belongs_to(step, mine, of)) {
                found = step;
                break;
            }
            if (found == most && 2 * (step - taken_) < room) found = step;
        }
        if (found == most) return std::nullopt;
        is_asked_[found % room] = true;
        ++asked_;
        return request(found);
    }

    // Another worker is to make it, unless one has.
    void give_back(const open_request& open) {
        const lock_guard held(mutex_);
        if (!is_open(open)) return;
        again_.push_back(open.step);
        ++counts_.asked_again;
    }

    // The first answer counts, if several workers were asked.
    void answer(const open_request& open, service_answer answer) {
        const lock_guard held(mutex_);
        if (!is_open(open)) return;
        std::erase(again_, open.step);
        slots_[open.step % slots_.size()] = std::move(answer);
        changed_.notify_all();
    }

    // No answer will come. Each `take` of this run throws.
    void fail(std::exception_ptr failure) {
        const lock_guard held(mutex_);
        failure_ = std::move(failure);
        changed_.notify_all();
    }

    // A claim of the run of that number.
    struct next_claim {
        std::uint64_t run;
        claim_request request;
    };

    // Waits until there is room for another batch that this rank claims. Nothing after `stop`.
    std::optional<next_claim> wait_for_room() {
        const lock_guard held(mutex_);
        while (!stopped_ && !wants_claim()) changed_.wait(mutex_);
        if (stopped_) return std::nullopt;
        next_claim next = note_of_claims();
        ++next.request.claim;
        return next;
    }
    void stop() {
        const lock_guard held(mutex_);
        stopped_ = true;
        changed_.notify_all();
    }
    void claimed(std::uint64_t run, const claim_answer& answer) {
        const lock_guard held(mutex_);
        if (run != run_) return;
        ++asks_.claim;
        done_ = std::max(done_, answer.done);
        has_all_ = answer.step == claim_answer::none;
        if (!has_all_) {
            claimed_.push_back(first_.first + answer.step * plan_.batch_size);
            ++steps_;
        }
        changed_.notify_all();
    }
    void fail_claims(std::uint64_t run, std::exception_ptr failure) {
        const lock_guard held(mutex_);
        if (run != run_) return;
        failure_ = std::move(failure);
        changed_.notify_all();
    }

    // The position of a batch that this rank has claimed, or will. None at the end.
    std::optional<std::uint64_t> position(std::uint64_t run, std::uint64_t step) {
        const lock_guard held(mutex_);
        if (run == run_ && asks_alone_ && wanted_ < step + 1) {
            wanted_ = step + 1;
            changed_.notify_all();
        }
        const time_point since = now();
        while (run == run_ && !failure_ && step >= steps_ && !has_all_) changed_.wait(mutex_);
        if (run != run_) throw_other_loader();
        waited_ += now() - since;
        if (step < steps_) return position_of(step);
        if (!has_all_) std::rethrow_exception(failure_);
        return std::nullopt;
    }
    // The trainer has so many batches of the run. Returns what rank 0 may be told of it.
    std::optional<next_claim> note_returned(std::uint64_t run, std::uint64_t steps) {
        const lock_guard held(mutex_);
        if (run != run_) return std::nullopt;
        for (; returned_ < steps; ++returned_) claimed_.pop_front();
        return note_of_claims();
    }
    std::optional<next_claim> note(std::uint64_t run) {
        const lock_guard held(mutex_);
        return run == run_ ? std::optional(note_of_claims()) : std::nullopt;
    }
    // The position before which all ranks have had their batches, with what rank 0 says now.
    std::uint64_t samples_done(std::uint64_t run, std::uint64_t done) {
        const lock_guard held(mutex_);
        if (run != run_) return 0;
        done_ = std::max(done_, done);
        if (done_ == asks_.steps) return plan_.samples;  // without those that are dropped
        return first_.first + done_ * plan_.batch_size;
    }

    // True if somebody waits for an answer.
    bool is_waited_for() {
        const lock_guard held(mutex_);
        return waiting_ > 0;
    }

    // Waits for the answer of a request of that run. Several threads take those of the run in any
    // order. `asks` is called when there may be more to ask for.
    // @throws usage_error if another run has begun
    template <class Asks>
    service_answer take(std::uint64_t run, const data::batch_request& batch, const Asks& asks) {
        const std::uint64_t step = begin_to_wait(run, batch);
        asks();
        mutex_.lock();
        const time_point since = now();
        service_answer taken;
        std::exception_ptr failure;
        while (run == run_ && !(failure = failure_) && !has(step)) changed_.wait(mutex_);
        const bool is_over = run != run_;
        if (!is_over && !failure) {
            std::optional<service_answer>& slot = slots_[step % slots_.size()];
            taken = std::move(*slot);
            slot.reset();
            is_asked_[step % slots_.size()] = false;
            ++taken_;
            ++counts_.batches;
            counts_.bytes += taken.bytes().size();
            counts_.in_shared_memory += taken.slot ? 1u : 0u;
            waited_ += now() - since;
        }
        --waiting_;
        mutex_.unlock();
        changed_.notify_all();
        if (is_over) throw_other_loader();
        if (failure) std::rethrow_exception(failure);
        asks();
        return taken;
    }

private:
    [[noreturn, gnu::cold]] static void throw_other_loader() {
        throw usage_error(-1,
                          "hvd: another loader of this pipeline has begun an epoch: loaders that "
                          "are used at once take one data::send_to_data_service each");
    }

    // Returns the step of a batch of that run.
    std::uint64_t begin_to_wait(std::uint64_t run, const data::batch_request& batch) {
        const lock_guard held(mutex_);
        if (run != run_) throw_other_loader();
        const std::uint64_t step = step_of(batch.first);
        if (asks_alone_) wanted_ = step + 1;
        ++waiting_;
        return step;
    }

    data::service_statistics current() const {
        data::service_statistics s = counts_;
        for (const auto& slot : slots_) s.ready += slot ? 1u : 0u;
        s.asked = asked_ - taken_ - s.ready - again_.size();
        s.seconds = began_ == 0 ? 0 : double(now() - began_) / 1e9;
        s.waited = double(waited_) / 1e9;
        return s;
    }
    data::service_statistics with_earlier(data::service_statistics s) const {
        s.batches += earlier_.batches;
        s.bytes += earlier_.bytes;
        s.in_shared_memory += earlier_.in_shared_memory;
        s.asked_again += earlier_.asked_again;
        s.seconds += earlier_.seconds;
        s.waited += earlier_.waited;
        return s;
    }

    bool belongs_to(std::uint64_t step, std::size_t worker, std::size_t of) const {
        const std::uint64_t number = position_of(step) / plan_.batch_size;
        return (number + std::uint64_t(first_.mine.rank)) % of == worker;
    }

    // A batch that was claimed is known until the trainer has it.
    std::uint64_t position_of(std::uint64_t step) const {
        return claims_ ? claimed_[std::size_t(step - returned_)]
                       : first_.first + step * plan_.batch_size;
    }
    std::uint64_t step_of(std::uint64_t position) const {
        if (!claims_) return (position - first_.first) / plan_.batch_size;
        const auto found = std::find(claimed_.begin(), claimed_.end(), position);
        return returned_ + std::uint64_t(found - claimed_.begin());
    }
    bool wants_claim() const {
        return claims_ && !has_all_ && !failure_ &&
               steps_ < (asks_alone_ ? wanted_ : taken_ + slots_.size());
    }
    next_claim note_of_claims() const {
        next_claim note{run_, asks_};
        note.request.returned = returned_;
        return note;
    }

    bool is_open(const open_request& open) const {
        return open.run == run_ && open.step >= taken_ && !slots_[open.step % slots_.size()];
    }

    // Steps are taken in their order, but for those that threads of a loader take at once.
    bool has(std::uint64_t step) const { return step == taken_ && slots_[step % slots_.size()]; }

    open_request request(std::uint64_t step) const {
        open_request open{run_, step, first_};
        open.batch.first = position_of(step);
        open.batch = plan_.own(open.batch);
        return open;
    }

    mutex mutex_;
    condition changed_;
    std::uint64_t run_ = 0, steps_ = 0;
    data::batch_request first_;
    data::batch_plan plan_;
    std::uint64_t taken_ = 0, asked_ = 0, wanted_ = 0;
    std::size_t waiting_ = 0;
    bool asks_alone_ = false;
    bool claims_ = false, has_all_ = false, stopped_ = false;
    claim_request asks_;                 // the last claim of this run
    std::deque<std::uint64_t> claimed_;  // positions of the steps from `returned_` on
    std::uint64_t returned_ = 0, done_ = 0;
    std::vector<std::uint64_t> again_;
    std::vector<std::optional<service_answer>> slots_;  // step n is in slot n % ahead
    std::vector<bool> is_asked_;                        // in the same order
    std::exception_ptr failure_;
    data::service_statistics counts_, earlier_;  // of this run, and of those before it
    time_point began_ = 0;
    std::int64_t waited_ = 0;  // nanoseconds
};

}  // namespace hvd::inline v0::detail
