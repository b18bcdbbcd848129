// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <deque>
#include <functional>
#include <memory>

#include "../core/engine_options.hpp"
#include "../execution/progress.hpp"
#include "merged_reduction.hpp"
#include "negotiation/decision.hpp"
#include "neutral.hpp"

namespace hvd::inline v0::detail {

class unit_runner;

// Tensors of a unit, from `first` to before `end`, which have the same contributors.
struct unit_part {
    const agreed_unit& unit;
    const std::vector<queued*>& calls;
    std::size_t first, end;
    double factor;  // of a mean
    unit_runner& runner;
    time_limit timeout;
};

// The part of an engine that runs tensors of devices, where there is one: engine/device/. It is
// broken once ranks may be at different calls.
struct device_units {
    std::shared_ptr<void> self;
    void (*run)(void* self, const unit_part&) = nullptr;
    bool (*is_broken)(const void* self) = nullptr;
    void (*give_up)(void* self, std::string_view why) noexcept = nullptr;
    // Ends the calls under way for a reason that is no empty text. The thread inside one asks.
    void (*end_calls_if)(void* self, std::function<message()> reason) = nullptr;
    // Nobody is told of work any more. Work that somebody wants to be told of is given up.
    void (*end)(void* self) noexcept = nullptr;
};

// Runs units on the communicator of an engine. One thread at a time uses it.
class unit_runner {
public:
    // `one_node`: all ranks show their headers before any data moves.
    unit_runner(shared<session> data, bool one_node, const engine_options& options)
        : data_(std::move(data)),
          one_node_(one_node),
          options_(options),
          patience_(shorter(options.stall_abort, data_->options().timeout)) {}

    // The calls end by then at the latest, as those of the tensors that have a timeout.
    void end_by(time_point limit) { limit_ = limit; }
    // The time that a call which begins now has. 0: any.
    time_limit timeout() const {
        return limit_ == never ? patience_ : shorter(patience_, limit_until(limit_));
    }

    int rank() const { return driver().rank(); }
    int size() const { return driver().size(); }
    bool broken() const { return driver().is_broken() || has_lost_devices(); }
    bool has_lost_devices() const {
        return devices_.self && devices_.is_broken(devices_.self.get());
    }
    void use(device_units devices) {
        if (devices_.self) devices_.end_calls_if(devices_.self.get(), {});
        devices_ = std::move(devices);
    }
    void give_up_devices(std::string_view why) noexcept {
        if (devices_.self) devices_.give_up(devices_.self.get(), why);
    }
    void end_devices() noexcept {
        if (devices_.self) devices_.end(devices_.self.get());
    }
    call_driver& driver() const { return static_cast<call_driver&>(*data_); }
    // `threads` of this rank want a processor meanwhile.
    void run_now(operation& op, int threads) const {
        op.threads = threads;
        data_->run(*data_, op, timeout());
    }

    void learn(const std::vector<known_reduction>& usual) {
        for (const known_reduction& k : usual) {
            call_header h;
            h.id = k.id;
            h.op = k.op;
            h.mode = k.mode;
            bool is_known = false;
            for (const known_reduction& other : known_) is_known = is_known || other.is_for(h);
            if (!is_known) known_.push_back(k);
        }
    }

    // Null if this rank has learnt none.
    const known_reduction* known_for(const call_header& h) const {
        for (const known_reduction& k : known_)
            if (k.is_for(h)) return &k;
        return nullptr;
    }

    // Runs f, which prepares a unit that all ranks run now. Where it fails, this rank refuses the
    // unit, and the others learn why. Devices compare no calls, so that this rank gives them up.
    template <class F>
    void prepare(tensor_memory where, F&& f) {
        try {
            f();
        } catch (...) {
            const std::exception_ptr failure = std::current_exception();
            if (where == tensor_memory::host) refuse_unit(failure);
            give_up_devices(what_of(failure));
            throw;
        }
    }

    // Runs a unit. `calls` has this rank's call for each tensor, null where it has joined before.
    // `threads` of this rank want a processor meanwhile.
    void run(const agreed_unit& unit, const std::vector<queued*>& calls, int threads) {
        prepare(unit.front().signature.where, [&] {
            for (const queued* call : calls)
                if (call != nullptr) learn(*call->op);
        });
        for (std::size_t first = 0, end = 0; first < unit.size(); first = end) {
            const int contributors = unit[first].contributors;
            for (end = first + 1; end < unit.size() && unit[end].contributors == contributors;)
                ++end;
            run_part(unit, calls, first, end, threads);
        }
    }

    // Before a predicted unit: where data moves with the headers, or on devices, whose calls are on
    // another communicator, the ranks say first that all of them run it.
    void confirm(const agreed_unit& unit, int threads) {
        if (one_node_ && unit.front().signature.where == tensor_memory::host) return;
        operation op;
        op.entry = agreement_header("a predicted step of an engine");
        op.only_agree = true;
        op.is_declined = &is_declined;
        run_now(op, threads);
    }

    // Takes the place of the predicted unit. All ranks throw an error that `is_decline`.
    void decline(std::string_view why) {
        operation op;
        op.entry = agreement_header("a predicted step of an engine");
        op.only_agree = true;
        op.entry.refuse(text_or(decline_mark, decline_mark, why));
        op.is_declined = &is_declined;
        run_now(op, 1);
    }
    static bool is_decline(const error& e) {
        return std::string_view(e.what()).find(decline_mark) != std::string_view::npos;
    }

    // Called in a handler.
    static bool is_declined() {
        try {
            throw;
        } catch (const error& e) {
            return is_decline(e);
        } catch (...) {
            return false;
        }
    }

private:
    static constexpr const char* decline_mark = "it declines the predicted step: ";

    // How a reduction is made that this rank has submitted: it may be asked for it after it has
    // joined.
    void learn(const operation& op) {
        if (op.group_count != 1 || op.fallible || op.groups[0].id == dtype::user) return;
        const reduction_group& g = op.groups[0];
        call_header h = op.entry;
        h.id = g.id;
        for (const known_reduction& k : known_)
            if (k.is_for(h)) return;
        known_reduction fresh{g.id, h.op, h.mode, g.function, rounding::toward_zero};
        if (h.mode != 0) std::memcpy(&fresh.rounds, g.op, sizeof fresh.rounds);
        known_.push_back(fresh);
    }

    static time_limit shorter(time_limit a, time_limit b) {
        if (!a.is_time() || !b.is_time()) return a.is_time() ? a : b;
        return a.time().nanoseconds < b.time().nanoseconds ? a : b;
    }

    // The tensors of a part have the same contributors.
    void run_part(const agreed_unit& unit, const std::vector<queued*>& calls, std::size_t first,
                  std::size_t end, int threads) {
        const agreed_tensor& head = unit[first];
        const double factor = mean_factor(head);
        if (head.signature.where == tensor_memory::device)
            return devices_.run(devices_.self.get(),
                                {unit, calls, first, end, factor, *this, timeout()});
        if (!head.signature.fuses) {
            for (std::size_t i = first; i < end; ++i)
                if (calls[i] != nullptr) {
                    calls[i]->op->is_declined = &is_declined;
                    run_now(*calls[i]->op, threads);
                } else run_neutral(unit[i], threads);
            return;
        }
        for (std::size_t i = first; i < end; ++i)
            if (calls[i] == nullptr) refuse_if_unknown(unit[i]);
        operation* merged = nullptr;
        prepare(tensor_memory::host, [&] { merged = &merge(unit, calls, first, end, factor); });
        run_now(*merged, threads);
    }

    // The fused tensors of a part as one call.
    operation& merge(const agreed_unit& unit, const std::vector<queued*>& calls, std::size_t first,
                     std::size_t end, double factor) {
        merged_.clear();
        neutral_.clear();
        const operation* of_this_rank = nullptr;
        for (std::size_t i = first; i < end; ++i)
            if (calls[i] != nullptr) {
                of_this_rank = calls[i]->op;
                merged_.add(*of_this_rank);
                if (checks(*of_this_rank)) merged_.check(*of_this_rank, unit[i].name);
            } else {
                merged_.add(neutral_reduction(unit[i]));
            }
        if (of_this_rank == nullptr) of_this_rank = &neutral_.front().op;
        if (merged_.checks()) driver().take_finite_checks();
        hash content;
        bool alike = true;  // a rank that has joined does not know the tensors of a group
        for (std::size_t i = first; i < end; ++i) {
            content.add(merged_reduction::content_of(unit[i].signature.call));
            alike = alike && (unit[i].contributors == size() || !unit[i].signature.call.fused);
        }
        operation& merged = merged_.finish(*of_this_rank, content.value(), factor, alike);
        merged.is_declined = &is_declined;
        return merged;
    }

    bool checks(const operation& op) const {
        return op.checks_finite || data_->options().check_finite;
    }

    // The peers make a call that this rank can't prepare: they throw peer_error, and this rank its
    // failure.
    [[noreturn]] void refuse_unit(const std::exception_ptr& failure) {
        operation op;
        op.entry = agreement_header("a unit of an engine");
        op.only_agree = true;
        forfeit(op, "it can't be prepared: ", failure);
        run_now(op, 1);
        std::rethrow_exception(failure);  // a backend that compares no calls
    }

    double mean_factor(const agreed_tensor& t) const {
        const bool averages = t.signature.call.kind == collective::allreduce &&
                              t.signature.call.op == std::uint8_t(op::average::id);
        if (!averages || options_.mean == join_mean::of_all || t.contributors == size()) return 1;
        return double(size()) / t.contributors;
    }

    // ---- for a rank that has joined ---------------------------------------------------------

    static constexpr std::string_view never_made = "has never made a reduction like that of";

    struct neutral_call {
        operation op{};
        reduction_group group{};
        std::vector<std::byte> memory;
    };

    // The header of the other ranks' calls for a tensor: a signature has no name.
    static call_header header_of(const agreed_tensor& t) {
        call_header h = t.signature.call;
        store(h.name, t.name);
        return h;
    }

    const operation& neutral_reduction(const agreed_tensor& t) {
        const call_header& h = t.signature.call;
        const known_reduction& known = *known_for(h);
        const std::size_t each = element_bytes_of(h.id);
        neutral_call& made = neutral_.emplace_back();
        made.memory.resize(t.signature.bytes);
        const std::size_t count = made.memory.size() / each;
        fill_neutral(h.id, made.memory.data(), count, h.op, h.prescale);
        made.group = {known.function, &known.rounds, each, 0, count, nullptr, h.id, false};
        made.op.entry = h;
        made.op.groups = &made.group;
        made.op.group_count = 1;
        made.op.callable = &known.rounds;
        made.op.in = made.op.out = made.memory.data();
        return made.op;
    }

    void refuse_if_unknown(const agreed_tensor& t) {
        if (known_for(t.signature.call) == nullptr) refuse_unknown(t, never_made);
    }

    // The ranks that have not joined learn why their call is refused.
    [[noreturn]] void refuse_unknown(const agreed_tensor& t, std::string_view why) {
        operation op;
        op.entry = header_of(t);
        op.entry.refuse(text_or(no_memory_for_text, "hvd: rank ", rank(), " has joined, and ", why,
                                " '", t.name, "': it can't take part in it"));
        run_now(op, 1);
        throw usage_error(rank(), op.entry.text);  // a backend that compares no calls
    }

    void run_neutral(const agreed_tensor& t, int threads) {
        operation op;
        op.entry = header_of(t);
        const call_header& h = t.signature.call;
        std::vector<std::byte> scratch;
        if (h.kind == collective::broadcast) {
            prepare(tensor_memory::host, [&] { scratch.resize(t.signature.bytes); });
            if (h.count > 0) op.element_bytes = scratch.size() / std::size_t(h.count);
            op.in = op.out = scratch.data();
        } else if (h.kind == collective::allgather) {
            if (h.fused || h.id == dtype::user)
                return refuse_unknown(t, "does not know the elements of");
            op.element_bytes = element_bytes_of(h.id);
            op.entry.count = 0;
            if (op.entry.dimensions > 0) op.entry.extents[0] = 0;
            gather_ = &scratch;
            element_bytes_ = op.element_bytes;
            op.self = this;
            op.provide = [](void* self, slice<const std::size_t> counts) {
                unit_runner& that = *static_cast<unit_runner*>(self);
                std::size_t all = 0;
                for (const std::size_t n : counts) all += n;
                that.gather_->resize(all * that.element_bytes_ + 1);
                return that.gather_->data();
            };
        } else if (h.kind != collective::barrier) {
            return refuse_unknown(t, never_made);
        }
        run_now(op, threads);
    }

    shared<session> data_;
    bool one_node_;
    engine_options options_;
    const time_limit patience_;  // of each call
    time_point limit_ = never;
    merged_reduction merged_;
    std::deque<known_reduction> known_;  // calls point into it
    device_units devices_;
    std::deque<neutral_call> neutral_;
    std::vector<std::byte>* gather_ = nullptr;
    std::size_t element_bytes_ = 0;
};

}  // namespace hvd::inline v0::detail
