// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <string_view>
#include <unordered_map>

#include "negotiation/decision.hpp"

namespace hvd::inline v0::detail {

// The step that all ranks expect, and how much of it this rank has submitted. Its units run in
// their order, over and over. It knows no tensors, only names.
class prediction {
public:
    explicit prediction(std::vector<agreed_unit> units) : units_(std::move(units)) {
        arrived_.resize(units_.size());
        for (std::size_t u = 0; u < units_.size(); ++u)
            for (const agreed_tensor& t : units_[u])
                places_.emplace(std::string_view(t.name), place{u, &t});
    }

    // Takes note of a tensor that this rank has submitted. False if it is not part of the step, or
    // is another one than before: the rank must decline.
    bool arrive(std::string_view name, const signature& mine) {
        const auto found = places_.find(name);
        if (found == places_.end() || !same(found->second.tensor->signature, mine)) return false;
        ++arrived_[found->second.unit];
        return true;
    }

    // True if this rank has submitted all tensors of the next unit.
    bool ready() const { return arrived_[next_] == units_[next_].size(); }
    const agreed_unit& next() const { return units_[next_]; }
    // The next unit has run. True if it was the last one of a step.
    bool advance() {
        arrived_[next_] -= units_[next_].size();
        next_ = (next_ + 1) % units_.size();
        return next_ == 0;
    }

private:
    struct place {
        std::size_t unit;
        const agreed_tensor* tensor;
    };

    // The collective itself compares what may differ between ranks, such as rows.
    static bool same(const signature& agreed, const signature& mine) {
        return !mine.call.refused && agreed.fuses == mine.fuses &&
               agreed.difference(mine) == field::none;
    }

    std::vector<agreed_unit> units_;
    std::vector<std::size_t> arrived_;  // tensors of each unit
    std::unordered_map<std::string_view, place> places_;
    std::size_t next_ = 0;
};

}  // namespace hvd::inline v0::detail
