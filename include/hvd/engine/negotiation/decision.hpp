// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "rank_set.hpp"
#include "signature.hpp"

namespace hvd::inline v0::detail {

// A tensor that all ranks have submitted, or have joined before they did.
struct agreed_tensor {
    std::string name;
    detail::signature signature;
    int contributors = 0;  // ranks that have submitted it; the others have joined
};

// Tensors that travel together in one collective.
using agreed_unit = std::vector<agreed_tensor>;

// Names a unit by a few of its tensors.
inline message label_of(const agreed_unit& unit) {
    constexpr std::size_t most = 5;
    message names(unit.size() == 1 ? "the tensor " : "the unit of ");
    for (std::size_t i = 0; i < unit.size() && i < most; ++i)
        names += text(i > 0 ? ", '" : "'", unit[i].name, "'");
    if (unit.size() > most) names += text(" and ", unit.size() - most, " more");
    return names;
}

// One thing that the ranks have agreed on. All ranks get the same decisions in the same order.
struct decision {
    enum class what : std::uint8_t {
        run,      // all ranks run `units[0]` now
        predict,  // from now on all ranks run `units` in this order, over and over, until one of
                  // them declines
        refuse,   // the tensor `name` is refused on all ranks that have submitted it, by `ranks`
        joined,   // all ranks have joined; `rank` was the last one. All ranks are back
        reset,    // the negotiation begins anew: ranks submit everything pending once more
        missing,  // a report: `ranks` have not submitted `name`, or do not answer; `text` says it
        ended,    // rank `rank` ends the engine; `text` says why. If it does for the sake of other
                  // ranks, these are `ranks`. The last decision
    };
    what kind = what::run;
    std::vector<agreed_unit> units;
    std::string name;
    std::string text;
    int rank = -1;
    rank_set ranks;
    // refuse: ranks disagree, and each rank's value of `differs` is in `values`. Otherwise `text`
    // is the reason why none of them may go on (for instance: the root has joined).
    field differs = field::none;
    std::vector<std::pair<int, std::string>> values;
};

}  // namespace hvd::inline v0::detail
