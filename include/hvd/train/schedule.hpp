// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../core/error.hpp"
#include "../core/lean/text.hpp"

namespace hvd::inline v0 {

// g++ 12 takes the enumerator for a declaration that shadows hvd::adasum.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"

/// The rule that turns a learning rate for one rank into one for all ranks.
enum class rate_rule : std::uint8_t {
    /// multiplies by the number of ranks, as the batch has grown (Goyal et al., arXiv:1706.02677)
    linear,
    /// multiplies by its square root, as the gradient's noise has shrunk; for Adam and similar
    /// optimizers
    square_root,
    adasum,  ///< leaves the rate as it is: Adasum finds the scale itself
};

#pragma GCC diagnostic pop

/// Returns the learning rate for `size` ranks, each with the batch size of the single rank.
/// `local_reduction` is the number of ranks of a node whose gradients are summed before Adasum. It
/// is 1 if Adasum combines all ranks.
/// @throws hvd::usage_error for fewer than one rank.
inline double scale_rate(double rate, int size, rate_rule rule = rate_rule::linear,
                         int local_reduction = 1) {
    if (size < 1 || local_reduction < 1)
        throw usage_error(
            -1, detail::text("hvd: scale_rate takes at least 1 rank, not ", size,
                             ", and a local_reduction of at least 1, not ", local_reduction));
    if (rule == rate_rule::linear) return rate * size;
    if (rule == rate_rule::square_root) return rate * std::sqrt(double(size));
    return rate * local_reduction;
}

/// Returns the factor for the scaled rate during warm-up. It rises in a straight line from 1/size
/// at the beginning to 1 after `warmup_epochs`. `epoch` may be a fraction. Horovod:
/// `LearningRateWarmupCallback`.
/// @throws hvd::usage_error for fewer than one rank.
inline double warmup_factor(double epoch, int size, double warmup_epochs = 5) {
    if (size < 1)
        throw usage_error(-1, detail::text("hvd: warmup_factor takes at least 1 rank, not ", size));
    if (epoch >= warmup_epochs || warmup_epochs <= 0) return 1;
    return (epoch * (size - 1) / warmup_epochs + 1) / size;
}

/// Multiplies the initial rate from `first_epoch` until before `last_epoch`. The multiplier is a
/// number or a function of the epoch. Outside, `factor_at` returns 1 and `applies` returns false.
/// Horovod: `LearningRateScheduleCallback`.
template <class Multiplier = double>
struct rate_schedule {
    Multiplier multiplier;
    double first_epoch = 0;
    double last_epoch = 1e300;
    bool staircase = true;  ///< the function gets whole epochs only

    bool applies(double epoch) const { return epoch >= first_epoch && epoch < last_epoch; }

    double factor_at(double epoch) const {
        if (!applies(epoch)) return 1;
        if constexpr (std::is_arithmetic_v<Multiplier>) return double(multiplier);
        else return double(multiplier(staircase ? std::floor(epoch) : epoch));
    }
};
template <class M>
rate_schedule(M) -> rate_schedule<M>;
template <class M, class... More>
rate_schedule(M, More...) -> rate_schedule<M>;

/// Sets an optimizer's `rate` and corrects its momentum. The velocity is scaled by new/old, as if
/// it had been gathered at the new rate. That is for optimizers that fold the rate into the
/// velocity (arXiv:1706.02677, section 2.1). Those of `hvd::optimizers` keep the rate out of it, so
/// `optimizer.rate = …` is enough for them.
template <class Optimizer, class Slots>
void set_rate_with_momentum_correction(Optimizer& optimizer, Slots& velocity, double rate) {
    const double old = double(optimizer.rate);
    optimizer.rate = static_cast<std::remove_cvref_t<decltype(optimizer.rate)>>(rate);
    if (old == 0) return;
    for (auto& slot : velocity)
        for (auto& v : slot)
            v = static_cast<std::remove_cvref_t<decltype(v)>>(double(v) * (rate / old));
}

}  // namespace hvd::inline v0
