// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "synchronized.hpp"

namespace hvd::inline v0 {

/// A factor for the loss, with which small gradients do not vanish in 16 bits. It adapts itself as
/// LibTorch's gradient scaler does. The gradients travel scaled, and the step divides them. A step
/// with an overflow on any rank is left out on all and lowers the factor; many steps in a row
/// without one raise it.
///
/// It is the same on all ranks without a message of its own: the optimizer's `skip_nonfinite`,
/// which it needs, tells all ranks of a step that is left out. Powers of two divide without
/// rounding. Gradients of `float16` need `optimizers::float_masters`, which divide them in float.
/// The struct is trivially copyable: `broadcast_object` sends it. Checkpoints have it as
/// `training_progress::scale`.
/// @snippet tests/train/snippets.cpp loss_scale
struct loss_scale {
    double value = 65536;          ///< multiply the loss, or its gradient, by this
    double growth = 2;             ///< multiplies the value after many steps
    double backoff = 0.5;          ///< multiplies the value after a step that was left out
    double interval = 2000;        ///< the number of steps in a row after which the value grows
    double min = 1, max = 0x1p24;  ///< limits of the value
    double good_steps = 0;  ///< steps in a row that were not left out, since the value changed

    /// Steps with the gradients of a scaled loss, and adapts the value. It returns false if the
    /// step was left out. On the device, `step(optimizer, stream)` waits for the stream to learn
    /// that.
    /// **Collective**.
    /// @throws as the `step` of the optimizer; hvd::usage_error if it has no `skip_nonfinite`.
    template <class Optimizer, class... Stream>
    bool step(Optimizer& optimizer, Stream... stream) {
        auto gradients = optimizer.synchronize(stream...);
        unscale(gradients);
        using result = decltype(optimizer.apply(std::move(gradients), stream...));
        if constexpr (std::is_void_v<result>) {
            optimizer.apply(std::move(gradients), stream...);
            return update(optimizer.has_stepped(stream...));
        } else {
            return update(optimizer.apply(std::move(gradients)));
        }
    }

    /// Makes `apply` divide the gradients by the value. `global_norm` and `clip_by_norm` take them
    /// as divided from now on; the tensors stay as they are.
    /// @throws hvd::usage_error for a value that is not a positive number.
    template <class T, class Space>
    void unscale(synchronized_gradients<T, Space>& gradients) const {
        constexpr double smallest = std::numeric_limits<double>::min();
        if (!detail::is_finite(value) || !(value >= smallest && value <= 1 / smallest))
            detail::refuse(gradients.rank(), "a loss scale of ", value,
                           ", which is no number that divides gradients");
        gradients.factor_ = 1 / value;
    }

    /// Adapts the value to the result of the optimizer's `apply`, and returns that.
    bool update(bool stepped) {
        if (!stepped) change(backoff);
        else if (++good_steps >= interval) change(growth);
        return stepped;
    }

    /// Calls `f(name, number&)` for all numbers.
    template <class F>
    void for_each_number(F f) {
        f("value", value);
        f("growth", growth);
        f("backoff", backoff);
        f("interval", interval);
        f("min", min);
        f("max", max);
        f("good_steps", good_steps);
    }

    bool operator==(const loss_scale&) const = default;

private:
    void change(double by) {
        good_steps = 0;
        const double changed = value * by;
        value = changed < min ? min : changed > max ? max : changed;
    }
};

}  // namespace hvd::inline v0
