// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "../execution/progress.hpp"
#include "../observe/engine_statistics.hpp"
#include "../protocol/call_record.hpp"
#include "negotiation/decision.hpp"
#include "negotiation/stall_watch.hpp"

namespace hvd::inline v0::detail {

// A tensor that this rank has submitted, until it is complete.
struct pending_tensor {
    shared<queued> call;
    signature mine;
    std::function<void(std::exception_ptr)> then;
    void (*on_done)(queued&, bool has_failed) = nullptr;  // before the request knows
    time_point since = 0;
    time_point limit = never;
    std::uint64_t number = 0;  // of the submission
    tensor_record::entry* record = nullptr;
    bool runs = false;
};

// Counts a unit that has begun at that time and is over, if this rank has tensors in it.
inline void count_unit(engine_statistics& counts, const std::vector<pending_tensor>& tensors,
                       bool has_failed, time_point begun) {
    const auto note = [](std::int64_t nanoseconds, double& all, double& longest) {
        const double seconds = double(nanoseconds) * 1e-9;
        all += seconds;
        if (seconds > longest) longest = seconds;
    };
    if (tensors.empty() || is_retune(tensors.front().mine)) return;
    ++counts.units;
    counts.unit_tensors += tensors.size();
    (has_failed ? counts.failed : counts.completed) += tensors.size();
    note(now() - begun, counts.running_seconds, counts.longest_run_seconds);
    for (const pending_tensor& t : tensors) {
        if (!has_failed) counts.bytes += t.mine.bytes;
        note(begun - t.since, counts.waiting_seconds, counts.longest_wait_seconds);
    }
}

// The tensors that this rank has submitted, by name. Its owner holds a lock.
class pending_table {
public:
    // The record has the key of the communicator's.
    explicit pending_table(const record_head& calls)
        : record_(record_head::tensors, calls.rank, calls.size) {
        record_->head.key = calls.key;
        store(record_->head.label, "engine");
    }

    const tensor_record& record() const { return *record_.get(); }

    bool empty() const { return tensors_.empty(); }
    std::size_t size() const { return tensors_.size(); }

    // Null if the name is in flight.
    const std::pair<const std::string, pending_tensor>* add(std::string_view name,
                                                            pending_tensor&& tensor) {
        const auto [at, is_new] = tensors_.try_emplace(std::string(name));
        if (!is_new) return nullptr;
        at->second = std::move(tensor);
        pending_tensor& added = at->second;
        added.record = record_->begin(name, added.mine.call, added.mine.bytes, added.since);
        limits_ += at->second.limit != never;
        return &*at;
    }

    template <class F>
    void for_each(F f) {
        for (auto& [name, tensor] : tensors_) f(name, tensor);
    }

    // True if this rank has refused a tensor of that name, and its peers have yet to submit it.
    bool refuses(std::string_view name) const {
        const auto found = tensors_.find(std::string(name));
        return found != tensors_.end() && found->second.mine.call.refused;
    }

    // This rank's calls for the tensors of a unit, which run from now on. Null where it has none.
    // Returns the time of the last submission, 0 if there was none.
    time_point claim(const agreed_unit& unit, std::vector<queued*>& calls) {
        time_point last = 0;
        calls.clear();
        calls.reserve(unit.size());  // before any of them counts as one that runs
        for (const agreed_tensor& t : unit) {
            const auto found = tensors_.find(t.name);
            if (found == tensors_.end()) {
                calls.push_back(nullptr);
                continue;
            }
            pending_tensor& p = found->second;
            p.runs = true;
            if (p.since > last) last = p.since;
            calls.push_back(p.call.get());
        }
        return last;
    }
    void unclaim(const agreed_unit& unit) {
        for (const agreed_tensor& t : unit)
            if (const auto found = tensors_.find(t.name); found != tensors_.end())
                found->second.runs = false;
    }

    // Removes a tensor. Its call is null if there is none of that name.
    pending_tensor take(const std::string& name) {
        auto node = tensors_.extract(name);
        if (node.empty()) return {};
        limits_ -= node.mapped().limit != never;
        record_->end(node.mapped().record);
        return std::move(node.mapped());
    }
    // Removes those of a unit. There is room for them.
    void take(const agreed_unit& unit, std::vector<pending_tensor>& taken) noexcept {
        for (const agreed_tensor& t : unit)
            if (pending_tensor p = take(t.name); p.call) taken.push_back(std::move(p));
    }
    // Removes one of those that do not run. Its call is null if there is none.
    pending_tensor take_waiting() noexcept {
        for (const auto& [name, tensor] : tensors_)
            if (!tensor.runs) return take(name);
        return {};
    }

    // Names and signatures, in the order of submission.
    std::vector<std::pair<std::string, signature>> in_order() const {
        std::vector<const std::pair<const std::string, pending_tensor>*> all;
        for (const auto& entry : tensors_) all.push_back(&entry);
        std::sort(all.begin(), all.end(),
                  [](auto* a, auto* b) { return a->second.number < b->second.number; });
        std::vector<std::pair<std::string, signature>> result;
        for (const auto* entry : all) result.emplace_back(entry->first, entry->second.mine);
        return result;
    }

    // Valid while the tensor is there.
    std::string_view name_of(const queued& call) const {
        for (const auto& [name, tensor] : tensors_)
            if (tensor.call.get() == &call) return name;
        return {};
    }
    // The names of a few of them.
    message names(const queued* left_out = nullptr) const {
        message result;
        std::size_t n = 0;
        for (const auto& [name, tensor] : tensors_)
            if (tensor.call.get() != left_out && ++n <= 5)
                result += text(n > 1 ? ", '" : "'", name, "'");
        if (n > 5) result += text(" and ", n - 5, " more");
        return result;
    }

    // The tensor that has waited for the longest time, and since when.
    stall_watch::tensor oldest() const {
        stall_watch::tensor result;
        for (const auto& [name, tensor] : tensors_)
            if (!tensor.runs && tensor.since < result.at) result = {name, tensor.since};
        return result;
    }
    // The tensor whose timeout comes first.
    stall_watch::tensor most_urgent() const {
        stall_watch::tensor result;
        if (limits_ == 0) return result;
        for (const auto& [name, tensor] : tensors_)
            if (!tensor.runs && tensor.limit < result.at) result = {name, tensor.limit};
        return result;
    }
    // The first timeout of all tensors, also of those that run.
    time_point first_limit() const {
        time_point result = never;
        if (limits_ > 0)
            for (const auto& [name, tensor] : tensors_)
                if (tensor.limit < result) result = tensor.limit;
        return result;
    }

private:
    kept_record<tensor_record> record_;
    std::unordered_map<std::string, pending_tensor> tensors_;
    std::size_t limits_ = 0;  // tensors that have a timeout
};

}  // namespace hvd::inline v0::detail
