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

/// Options of `scale_rate`.
struct scale_options {
    int ranks =
        0;  ///< how many train together, as `world.size()`; each has the single rank's batch
    rate_rule rule = rate_rule::linear;  ///< how the rate grows with the ranks
    /// The number of ranks of a node whose gradients are summed before Adasum. It is 1 if Adasum
    /// combines all ranks.
    int local_reduction = 1;
};

/// Returns the learning rate for all ranks: `scale_rate(0.1, {.ranks = world.size()})`. `rate` is
/// that of a single rank.
/// @throws hvd::usage_error for fewer than one rank.
/// @snippet tests/train/snippets.cpp schedule
[[nodiscard("hvd: the rate is what it returns")]] inline double scale_rate(
    double rate, const scale_options& options) {
    if (options.ranks < 1 || options.local_reduction < 1)
        throw usage_error(
            -1,
            detail::text("hvd: scale_rate takes .ranks of at least 1, not ", options.ranks,
                         ", and a .local_reduction of at least 1, not ", options.local_reduction));
    if (options.rule == rate_rule::linear) return rate * options.ranks;
    if (options.rule == rate_rule::square_root) return rate * std::sqrt(double(options.ranks));
    return rate * options.local_reduction;
}

/// Options of `warmup_factor`.
struct warmup_options {
    int ranks = 0;      ///< how many train together, as `world.size()`
    double epochs = 5;  ///< how long the warm-up is; 0: there is none
};

/// Returns the factor for the scaled rate during warm-up, `warmup_factor(epoch, {.ranks =
/// world.size()})`. It rises in a straight line from 1/ranks at the beginning to 1 after
/// `options.epochs`. `epoch` may be a fraction. Horovod: `LearningRateWarmupCallback`.
/// @throws hvd::usage_error for fewer than one rank, and an epoch or a number of epochs below 0.
/// @snippet tests/train/snippets.cpp schedule
[[nodiscard("hvd: the factor is what it returns")]] inline double warmup_factor(
    double epoch, const warmup_options& options) {
    if (options.ranks < 1 || !(options.epochs >= 0) || !(epoch >= 0))
        throw usage_error(
            -1, detail::text("hvd: warmup_factor takes .ranks of at least 1, not ", options.ranks,
                             ", .epochs of at least 0, not ", options.epochs,
                             ", and an epoch of at least 0, not ", epoch));
    if (epoch >= options.epochs) return 1;
    return (epoch * (options.ranks - 1) / options.epochs + 1) / options.ranks;
}

/// Options of a `rate_schedule`.
struct schedule_options {
    double start_epoch = 0;    ///< the first epoch in which it applies
    double end_epoch = 1e300;  ///< the first epoch in which it no longer applies
    bool staircase = true;     ///< a function gets whole epochs only
};

/// Multiplies the initial rate from one epoch until before another: `rate_schedule{0.1,
/// {.start_epoch = 30, .end_epoch = 60}}`. The multiplier is a number or a function of the epoch.
/// Outside, `factor_at` returns 1 and `applies` returns false. Horovod:
/// `LearningRateScheduleCallback`.
/// @snippet tests/train/snippets.cpp schedule
template <class Multiplier = double>
struct rate_schedule {
    Multiplier multiplier;
    schedule_options options = {};

    bool applies(double epoch) const {
        return epoch >= options.start_epoch && epoch < options.end_epoch;
    }

    double factor_at(double epoch) const {
        if (!applies(epoch)) return 1;
        if constexpr (std::is_arithmetic_v<Multiplier>) return double(multiplier);
        else return double(multiplier(options.staircase ? std::floor(epoch) : epoch));
    }
};
template <class M>
rate_schedule(M, schedule_options = {}) -> rate_schedule<M>;

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
