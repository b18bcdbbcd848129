// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <vector>

#include "../agreement.hpp"
#include "../gradients/gradient_wire.hpp"
#include "../gradients/options.hpp"
#include "../gradients/registry.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

template <class Backend>
void check_options(int rank, const optimizer_options& o) {
    if (o.backward_passes_per_step < 1)
        refuse(rank, "backward_passes_per_step is ", o.backward_passes_per_step,
               ", and at least 1");
    const double f = o.gradient_predivide_factor;
    if (!(f > 0) || !std::isfinite(f))
        refuse(rank, "gradient_predivide_factor is ", f, ", and above 0");
    if (f != 1 && o.op != gradient_op::average)
        refuse(rank, "gradient_predivide_factor is part of an average; the op is another");
    if (o.codec != gradient_codec::none && o.op == gradient_op::adasum)
        refuse(rank,
               "a codec is for averages and sums; the op is Adasum, whose changes travel as they "
               "are");
    if (o.error_feedback && o.codec == gradient_codec::none)
        refuse(rank, "error_feedback is part of a codec; there is none, and nothing is rounded");
    if (!reduces_wire_of<Backend>(o.codec)) refuse(rank, no_wire_text);
}

inline std::string shown(const std::vector<std::vector<std::size_t>>& groups) {
    std::string all = "{";
    for (const auto& group : groups) all += (all.size() > 1 ? ", " : "") + shown(group);
    return all + "}";
}

inline std::vector<statement> statements_of(const optimizer_options& o) {
    return {{"op", name_of(o.op)},
            {"bucket_bytes", words(o.bucket_bytes)},
            {"groups", shown(o.groups)},
            {"backward_passes_per_step", words(o.backward_passes_per_step)},
            {"average_passes", words(o.average_passes)},
            {"gradient_predivide_factor", words(o.gradient_predivide_factor)},
            {"codec", name_of(o.codec)},
            {"error_feedback", words(o.error_feedback)},
            {"scale_local", words(o.scale_local)},
            {"skip_nonfinite", words(o.skip_nonfinite)}};
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
