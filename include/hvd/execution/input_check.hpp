// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../protocol/not_finite_input.hpp"
#include "../transport/operation.hpp"

namespace hvd::inline v0::detail {

[[gnu::cold]] inline void refuse_input(operation& op, std::size_t index, dtype id,
                                       const std::byte* place, std::string_view tensor) {
    refuse_not_finite(op.entry, {bad_value_of(id, place), index, tensor});
}

// Looks at the tensors that the call packs or fuses. It refuses the call for the first element that
// is not finite.
inline void check_inputs(operation& op) {
    for (const tensor_ref& t : op.inputs) {
        const found_element found = find_not_finite(t);
        if (found.place == nullptr) continue;
        const message name = op.names != nullptr ? op.names->name(*op.names, t.number)
                             : op.entry.fused    ? text("tensor ", t.number)
                                                 : message();
        return refuse_input(op, found.index, t.id, found.place, name);
    }
}

// The same for a call of one tensor, which lies where the call reads it.
inline void check_whole_input(operation& op) {
    for (std::size_t i = 0; i < op.group_count; ++i) {
        const reduction_group& g = op.groups[i];
        const std::byte* const data = op.in + g.offset;
        const std::size_t index = first_not_finite(g.id, data, g.count);
        if (index == g.count) continue;
        return refuse_input(op, index, g.id, data + index * g.element_bytes, {});
    }
}

// Before a reduction of floats: this rank refuses it if its input has a NaN or an infinity. The
// ranks learn that with the headers, so that all of them throw the same.
[[gnu::noinline]] inline void check_input(operation& op) {
    if (!op.reduces() || op.only_agree || op.unchecked || op.entry.refused) return;
    if (op.inputs.size() > 0) check_inputs(op);
    else if (op.in != nullptr) check_whole_input(op);
}

}  // namespace hvd::inline v0::detail
