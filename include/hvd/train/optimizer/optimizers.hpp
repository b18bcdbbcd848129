// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "../../protocol/agreement.hpp"
#include "../tensors.hpp"

namespace hvd {
inline namespace v0 {

/// Optimizers as plain structs. Their settings are members, and `step(parameters, gradients)`
/// changes the parameters. They know nothing of ranks; `distributed_optimizer` distributes them.
///
/// An empty view stands for a frozen parameter. It is skipped and keeps its slots.
namespace optimizers {

/// The parameters of a model, or their gradients, one view for each tensor.
template <class T>
using tensors = std::span<const tensor_view<T>>;

/// The type in which an optimizer of elements T computes and keeps its state: float for 16-bit
/// floats.
template <class T>
using number = typename dtype_traits<T>::accumulator;

/// The state of an optimizer for each parameter's elements. The first step that needs it makes it.
template <class T>
using slots = std::vector<std::vector<T>>;

namespace detail {

template <class T>
std::span<T> slot_of(slots<T>& all, std::size_t parameter, std::size_t size) {
    if (all.size() <= parameter) all.resize(parameter + 1);
    if (all[parameter].empty()) all[parameter].resize(size);
    return all[parameter];
}

// Calls f(i, values, gradients) for each parameter that is not frozen.
template <class T, class F>
void for_each(tensors<T> parameters, tensors<T> gradients, F f) {
    for (std::size_t i = 0; i < parameters.size(); ++i)
        if (parameters[i].size() > 0)
            f(i, hvd::detail::elements(parameters[i]), hvd::detail::elements(gradients[i]));
}

}  // namespace detail

/// Computes value -= rate · gradient.
template <class T = float>
struct sgd {
    using value_type = T;
    using R = number<T>;
    R rate = R(0.01);

    void step(tensors<T> parameters, tensors<T> gradients) {
        detail::for_each(parameters, gradients, [&](std::size_t, std::span<T> p, std::span<T> g) {
            for (std::size_t k = 0; k < p.size(); ++k) p[k] = T(R(p[k]) - rate * R(g[k]));
        });
    }

    template <class F>
    void for_each_slot(F) {}
    template <class F>
    void for_each_number(F f) {
        f("rate", rate);
    }
};

/// Computes velocity = momentum · velocity + gradient and value -= rate · velocity.
template <class T = float>
struct momentum {
    using value_type = T;
    using R = number<T>;
    R rate = R(0.01);
    R factor = R(0.9);
    slots<R> velocity = {};

    void step(tensors<T> parameters, tensors<T> gradients) {
        detail::for_each(parameters, gradients, [&](std::size_t i, std::span<T> p, std::span<T> g) {
            const auto v = detail::slot_of(velocity, i, p.size());
            for (std::size_t k = 0; k < p.size(); ++k) {
                v[k] = factor * v[k] + R(g[k]);
                p[k] = T(R(p[k]) - rate * v[k]);
            }
        });
    }

    template <class F>
    void for_each_slot(F f) {
        f("velocity", velocity);
    }
    template <class F>
    void for_each_number(F f) {
        f("rate", rate);
        f("factor", factor);
    }
};

/// Adam (Kingma and Ba, arXiv:1412.6980). With `decay` it is AdamW (Loshchilov and Hutter,
/// arXiv:1711.05101), which is `adamw` where the decay has its usual value.
template <class T = float, bool Decays = false>
struct adam {
    using value_type = T;
    using R = number<T>;
    R rate = R(0.001);
    R beta1 = R(0.9);
    R beta2 = R(0.999);
    R epsilon = R(1e-8);
    R decay =
        R(Decays ? 0.01 : 0);  ///< applied to the values times the rate, not through the gradient
    double steps = 0;
    slots<R> mean = {};
    slots<R> variance = {};

    void step(tensors<T> parameters, tensors<T> gradients) {
        steps += 1;
        const R mean_bias = R(1 - std::pow(double(beta1), steps));
        const R variance_bias = R(1 - std::pow(double(beta2), steps));
        detail::for_each(parameters, gradients, [&](std::size_t i, std::span<T> p, std::span<T> g) {
            const auto m = detail::slot_of(mean, i, p.size());
            const auto v = detail::slot_of(variance, i, p.size());
            for (std::size_t k = 0; k < p.size(); ++k) {
                const R value = R(p[k]), gradient = R(g[k]);
                m[k] = beta1 * m[k] + (1 - beta1) * gradient;
                v[k] = beta2 * v[k] + (1 - beta2) * gradient * gradient;
                p[k] = T(value -
                         rate * (m[k] / mean_bias / (std::sqrt(v[k] / variance_bias) + epsilon) +
                                 decay * value));
            }
        });
    }

    template <class F>
    void for_each_slot(F f) {
        f("mean", mean);
        f("variance", variance);
    }
    template <class F>
    void for_each_number(F f) {
        f("rate", rate);
        f("beta1", beta1);
        f("beta2", beta2);
        f("epsilon", epsilon);
        f("decay", decay);
        f("steps", steps);
    }
};

/// Adam with its usual decay, 0.01: `adamw<float>{.rate = 0.1f, .decay = 0.05f}`.
template <class T = float>
using adamw = adam<T, true>;

/// Adadelta (Zeiler, arXiv:1212.5701).
template <class T = float>
struct adadelta {
    using value_type = T;
    using R = number<T>;
    R rate = R(1);
    R rho = R(0.9);
    R epsilon = R(1e-6);
    slots<R> squares = {};  ///< running mean of squared gradients
    slots<R> changes = {};  ///< running mean of squared changes

    void step(tensors<T> parameters, tensors<T> gradients) {
        detail::for_each(parameters, gradients, [&](std::size_t i, std::span<T> p, std::span<T> g) {
            const auto s = detail::slot_of(squares, i, p.size());
            const auto c = detail::slot_of(changes, i, p.size());
            for (std::size_t k = 0; k < p.size(); ++k) {
                const R gradient = R(g[k]);
                s[k] = rho * s[k] + (1 - rho) * gradient * gradient;
                const R change = std::sqrt((c[k] + epsilon) / (s[k] + epsilon)) * gradient;
                c[k] = rho * c[k] + (1 - rho) * change * change;
                p[k] = T(R(p[k]) - rate * change);
            }
        });
    }

    template <class F>
    void for_each_slot(F f) {
        f("squares", squares);
        f("changes", changes);
    }
    template <class F>
    void for_each_number(F f) {
        f("rate", rate);
        f("rho", rho);
        f("epsilon", epsilon);
    }
};

}  // namespace optimizers

/// O can step a model whose elements are T by `step(parameters, gradients)`. The arguments are
/// spans of views with equal sizes pair by pair, in the order of registration. A frozen parameter's
/// views are empty.
template <class O, class T>
concept optimizer_of = requires(O& o, optimizers::tensors<T> list) { o.step(list, list); };

/// O holds its parameters and gradients itself, as LibTorch's optimizers do, and has `step()`.
template <class O>
concept self_contained_optimizer = requires(O& o) { o.step(); };

namespace detail {

// The element type of an optimizer that does not say another.
template <class Optimizer>
struct optimizer_element {
    using type = float;
};
template <class Optimizer>
    requires requires { typename Optimizer::value_type; }
struct optimizer_element<Optimizer> {
    using type = typename Optimizer::value_type;
};

}  // namespace detail

}  // namespace v0
}  // namespace hvd
