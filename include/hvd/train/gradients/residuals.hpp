// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "options.hpp"
#include "registry.hpp"
#include "slices.hpp"

namespace hvd::inline v0::detail {

// Residuals as checkpoints have them: for each parameter one float per element, in units of the
// gradient that is applied, whatever the number of ranks. It is empty if nothing is pending.
using whole_residuals = std::vector<std::vector<float>>;

// The weight of one rank's rows in the gradient that is applied.
inline double weight_of_rows(const optimizer_options& o, int ranks) {
    const double passes = o.average_passes ? 1.0 / o.backward_passes_per_step : 1;
    return o.op == hvd::average ? o.gradient_predivide_factor * passes / ranks : passes;
}

// **Collective**: returns the residuals of all ranks together, on all ranks.
template <class Comm>
whole_residuals gather_residuals(Comm& comm, const parameter_list& parameters,
                                 const optimizer_options& o) {
    whole_residuals all(parameters.size());
    for (std::size_t i = 0; o.codec.keeps_residual() && i < parameters.size(); ++i) {
        const auto& p = parameters[i];
        if (p.kind == parameter_kind::local) continue;
        const bool sparse = p.kind == parameter_kind::sparse;
        const double weight = sparse ? weight_of_rows(o, comm.size()) : 1;
        const owned_slice own = feedback_slice(p.value.size(), comm.rank(), comm.size());
        std::vector<float> whole(p.value.size());
        std::transform(p.residual.begin(), p.residual.end(),
                       whole.begin() + std::ptrdiff_t(sparse ? 0 : own.begin),
                       [&](float x) { return float(x * weight); });
        comm.allreduce(whole, sum);
        if (std::any_of(whole.begin(), whole.end(), [](float x) { return x != 0; }))
            all[i] = std::move(whole);
    }
    return all;
}

// **Collective**: every rank takes its part of the root's residuals.
template <class Comm>
void scatter_residuals(Comm& comm, parameter_list& parameters, const optimizer_options& o,
                       whole_residuals&& all) {
    all.resize(parameters.size());
    for (std::size_t i = 0; o.codec.keeps_residual() && i < parameters.size(); ++i) {
        auto& p = parameters[i];
        if (p.kind == parameter_kind::local) continue;
        const bool sparse = p.kind == parameter_kind::sparse;
        all[i].resize(p.value.size());
        comm.broadcast(all[i], root{0});
        const owned_slice own = sparse ? owned_slice{0, p.value.size()}
                                       : feedback_slice(p.value.size(), comm.rank(), comm.size());
        const double share = sparse ? 1 / (weight_of_rows(o, comm.size()) * comm.size()) : 1;
        p.residual.resize(own.count);
        for (std::size_t k = 0; k < own.count; ++k)
            p.residual[k] = float(all[i][own.begin + k] * share);
    }
}

}  // namespace hvd::inline v0::detail
