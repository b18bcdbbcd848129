// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <map>

#include "../../core/op.hpp"
#include "decision.hpp"
#include "rank_set.hpp"

namespace hvd::inline v0::detail {

// Settings of the negotiation, the same on all ranks.
struct negotiation_options {
    int fanout = 8;                     // children of a rank in the tree of ranks
    std::size_t fusion_threshold = 0;   // bytes up to which tensors travel together
    bool largest_first = false;         // of tensors with one priority
    std::size_t cache_capacity = 1024;  // tensors with a number; 0: none
    bool predict = true;
    int repeats_before_prediction = 2;  // of a step
};

// Ranks that say the same of a tensor.
struct signature_group {
    detail::signature signature;
    rank_set ranks;
};

// A tensor with a number, by which ranks speak of it.
struct numbered_tensor {
    std::string name;
    detail::signature signature;
};

// A tensor that is ready on all ranks.
struct ready_tensor {
    std::uint32_t number;
    int contributors;
};

// Forms units of tensors that are ready: the highest priority first, then the largest if it is
// asked for, otherwise in the order given. Tensors that travel together do so up to the threshold,
// past others that don't.
inline std::vector<std::vector<ready_tensor>> units_of(
    std::vector<ready_tensor> ready, const std::map<std::uint32_t, numbered_tensor>& numbered,
    const negotiation_options& how) {
    const auto signature_of = [&](const ready_tensor& t) -> const signature& {
        return numbered.at(t.number).signature;
    };
    std::stable_sort(ready.begin(), ready.end(), [&](const auto& a, const auto& b) {
        const signature &x = signature_of(a), &y = signature_of(b);
        if (x.priority != y.priority) return x.priority > y.priority;
        return how.largest_first && x.bytes > y.bytes;
    });
    std::vector<std::vector<ready_tensor>> units;
    std::vector<bool> taken(ready.size());
    for (std::size_t i = 0; i < ready.size(); ++i) {
        if (taken[i]) continue;
        std::vector<ready_tensor>& unit = units.emplace_back();
        unit.push_back(ready[i]);
        const signature& first = signature_of(ready[i]);
        std::uint64_t bytes = first.bytes;
        for (std::size_t k = i + 1; k < ready.size() && first.fuses; ++k) {
            const signature& next = signature_of(ready[k]);
            if (taken[k] || !first.travels_with(next) || bytes + next.bytes > how.fusion_threshold)
                continue;
            taken[k] = true;
            bytes += next.bytes;
            unit.push_back(ready[k]);
        }
    }
    return units;
}

// Learns the step that repeats. A step is what becomes ready until a tensor does so once more.
class step_learner {
public:
    explicit step_learner(int repeats) : needed_(repeats), wanted_(repeats) {}

    // Takes note of a tensor that is ready. True if the step that ends with it is to be predicted.
    bool note(ready_tensor t) {
        if (members_.count(t.number) != 0) {
            auto step = std::move(members_);
            repeats_ = step == last_ ? repeats_ + 1 : 1;
            last_ = std::move(step);
            members_.clear();
            order_.clear();
        }
        members_.emplace(t.number, 0);
        order_.push_back({t.number, t.contributors});
        return repeats_ >= wanted_ && members_ == last_;
    }
    const std::vector<ready_tensor>& step() const { return order_; }

    // Other thresholds hold from now on: what comes next is a new step, soon to be predicted.
    bool begin_anew() {
        wanted_ = needed_;
        forget();
        return false;
    }

    // The next tensors repeat nothing that came before.
    void forget() {
        members_.clear();
        last_.clear();
        order_.clear();
        repeats_ = 0;
    }
    // The ranks have left a prediction after so many units of it. One that does not hold is made
    // later the next time.
    void left_prediction(std::uint64_t units) {
        wanted_ = units < 8 ? std::min(2 * wanted_, 1024) : needed_;
        forget();
    }

private:
    std::map<std::uint32_t, int> members_, last_;
    std::vector<ready_tensor> order_;
    int repeats_ = 0;
    int needed_, wanted_;
};

// The first field in which any two ranks differ, or none.
inline field difference_of(const std::vector<signature_group>& groups) {
    field first = field::none;
    for (const signature_group& g : groups)
        first = std::min(first, g.signature.difference(groups.front().signature));
    return first;
}

inline std::string print_value(const signature& s, field f) {
    if (f == field::memory) return s.where == tensor_memory::device ? "device" : "host";
    return std::string(std::string_view(print_field(s.call, f)));
}

// Why a tensor can't be reduced while ranks have joined, or an empty text.
inline message refusal_after_join(const signature& s, const rank_set& joined, int contributors,
                                  int size) {
    if (joined.empty() || contributors == size) return {};
    const call_header& c = s.call;
    const auto because = [&](const char* why) {
        return text(why, ": ", joined.print(), joined.size() == 1 ? " has" : " have", " joined");
    };
    switch (c.kind) {
        case collective::allreduce:
            if (c.op >= std::uint8_t(op::adasum::id))
                return because("this operation has no element that changes nothing");
            return {};
        case collective::broadcast:
            return joined.contains(c.root) ? because("the root has no tensor any more") : message();
        case collective::allgather:
        case collective::barrier: return {};
        default: return because("this collective needs all ranks");
    }
}

}  // namespace hvd::inline v0::detail
