// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "../../kernel/update.hpp"
#include "../../protocol/agreement.hpp"
#include "../sparse/rows.hpp"
#include "../tensors.hpp"

namespace hvd::inline v0 {

/// Optimizers as plain structs. Their settings are members, and `step(parameters, gradients)`
/// changes the parameters. They know nothing of ranks; `distributed_optimizer` distributes them.
///
/// An empty view stands for a frozen parameter. It is skipped and keeps its slots. A step with
/// slots of another size than their parameter throws `hvd::usage_error`.
namespace optimizers {

/// The parameters of a model, or their gradients, one view for each tensor.
template <class T>
using tensors = std::span<const tensor_view<T>>;

namespace detail {
template <class T>
struct number_of {
    static_assert(hvd::detail::is_float_element<T>,
                  "hvd: an optimizer steps float, double, hvd::float16 or hvd::bfloat16: integers "
                  "have no gradients, and a complex tensor is registered as its reals, "
                  "hvd::view(reinterpret_cast<float*>(z.data()), 2 * z.size())");
    using type = std::conditional_t<hvd::detail::is_float_element<T>, dtype_traits<T>,
                                    dtype_traits<float>>::accumulator;
};
}  // namespace detail

/// The type in which an optimizer of elements T computes and keeps its state: float for 16-bit
/// floats.
template <class T>
using number = typename detail::number_of<T>::type;

/// The state of an optimizer for each parameter's elements. The first step that needs it makes it.
template <class T>
using slots = std::vector<std::vector<T>>;

/// The number of steps that each parameter has taken. A frozen parameter takes none. It is a slot
/// of one number for each parameter, or of none before its first step.
struct step_counts : slots<double> {
    using slots<double>::slots;

    /// The steps of a parameter, by its index.
    double of(std::size_t parameter) const {
        return parameter < size() && !(*this)[parameter].empty() ? (*this)[parameter][0] : 0;
    }
};

namespace detail {

[[gnu::cold, noreturn]] inline void refuse_slot(std::size_t parameter, std::size_t has,
                                                std::size_t size) {
    hvd::detail::refuse(-1, "the optimizer's state of parameter ", parameter, " has ", has,
                        " elements, and the parameter ", size, ": it is that of other parameters");
}

// A state that was read or assigned may be that of other parameters.
template <class T>
std::span<T> slot_of(slots<T>& all, std::size_t parameter, std::size_t size) {
    if (all.size() <= parameter) all.resize(parameter + 1);
    if (all[parameter].empty()) all[parameter].resize(size);
    if (all[parameter].size() != size) refuse_slot(parameter, all[parameter].size(), size);
    return all[parameter];
}

// Calls f(i, values, gradients) for each parameter that is not frozen.
template <class T, class F>
void for_each(tensors<T> parameters, tensors<T> gradients, F f) {
    for (std::size_t i = 0; i < parameters.size(); ++i)
        if (parameters[i].size() > 0)
            f(i, hvd::detail::elements(parameters[i]), hvd::detail::elements(gradients[i]));
}

// Steps the elements of a parameter by a rule, with `states` of R each. It is the kernel of a
// fused_step too. Elements of 16 bits are stepped as floats, in blocks.
template <class Rule, class T, class R>
void update(const Rule& rule, std::span<T> p, std::span<const T> g, R* state1, R* state2) {
    if constexpr (std::is_same_v<T, R>) {
        hvd::detail::step_elements(rule, p.size(), p.data(), g.data(), state1, state2, p.data());
    } else {
        constexpr std::size_t block = 256;
        R values[block], slopes[block];
        for (std::size_t at = 0; at < p.size(); at += block) {
            const std::size_t n = p.size() - at < block ? p.size() - at : block;
            for (std::size_t k = 0; k < n; ++k) {
                values[k] = R(p[at + k]);
                slopes[k] = R(g[at + k]);
            }
            hvd::detail::step_elements(rule, n, values, slopes,
                                       state1 == nullptr ? nullptr : state1 + at,
                                       state2 == nullptr ? nullptr : state2 + at, values);
            for (std::size_t k = 0; k < n; ++k) p[at + k] = T(values[k]);
        }
    }
}

}  // namespace detail

/// Stochastic gradient descent, as PyTorch's SGD without dampening: velocity = momentum · velocity
/// + gradient and value -= rate · velocity. The first velocity is the gradient.
///
/// With `nesterov` the step is along gradient + momentum · velocity. Without momentum there is no
/// velocity, the step is along the gradient, and `nesterov` changes nothing. A momentum that
/// becomes 0 later leaves the velocity as it is; it goes on from there when the momentum is back.
template <class T = float>
struct sgd {
    using value_type = T;
    using R = number<T>;
    R rate = R(0.01);        ///< the learning rate
    R momentum = R(0);       ///< 0: none, and no velocity is kept
    bool nesterov = false;   ///< looks ahead by the momentum
    R weight_decay = R(0);   ///< L2: weight_decay · value is added to the gradient
    slots<R> velocity = {};  ///< with momentum only

    /// For hvd: the kernel of a step.
    auto rule(std::uint64_t = 0) const {
        return hvd::detail::sgd_rule<R>{rate, momentum, R(0), weight_decay, nesterov, false};
    }

    void step(tensors<T> parameters, tensors<T> gradients) {
        detail::for_each(parameters, gradients, [&](std::size_t i, std::span<T> p, std::span<T> g) {
            std::span<R> v;
            if (momentum != R(0)) v = detail::slot_of(velocity, i, p.size());
            detail::update(rule(), p, std::span<const T>(g), v.data(), static_cast<R*>(nullptr));
        });
    }

    /// Steps rows of a table. Without momentum and weight decay the other rows stay in `step`, too.
    void step_rows(std::size_t, const tensor_view<T>& table, const sparse_view<T>& rows) {
        hvd::detail::for_each_row(
            table, rows.indices, rows.values, [&](std::span<T> p, std::span<const T> g) {
                detail::update(hvd::detail::descent_rule<R>{rate, weight_decay}, p, g,
                               static_cast<R*>(nullptr), static_cast<R*>(nullptr));
            });
    }
    /// With momentum or weight decay, tables are stepped whole.
    bool steps_rows() const { return momentum == R(0) && weight_decay == R(0); }

    template <class F>
    void for_each_slot(F f) {
        f("velocity", velocity);
    }
    template <class F>
    void for_each_number(F f) {
        f("rate", rate);
        f("momentum", momentum);
        f("nesterov", nesterov);
        f("weight_decay", weight_decay);
    }
};

/// Adam (Kingma and Ba, arXiv:1412.6980), or with `Decoupled` AdamW (Loshchilov and Hutter,
/// arXiv:1711.05101), as PyTorch's `Adam` and `AdamW`. They differ in the meaning of
/// `weight_decay`, and in its default, which is 0 for `adam` and 0.01 for `adamw`.
template <class T = float, bool Decoupled = false>
struct adam {
    using value_type = T;
    using R = number<T>;
    R rate = R(0.001);    ///< the learning rate
    R beta1 = R(0.9);     ///< decay of the mean
    R beta2 = R(0.999);   ///< decay of the variance
    R epsilon = R(1e-8);  ///< added to the root of the variance
    /// L2: weight_decay · value is added to the gradient. In `adamw` it is decoupled: each step
    /// first multiplies the value by 1 - rate · weight_decay.
    R weight_decay = R(Decoupled ? 0.01 : 0);
    slots<R> mean = {};      ///< state: running mean of the gradients
    slots<R> variance = {};  ///< state: running mean of their squares
    step_counts steps = {};  ///< each parameter's own, which correct the bias of its moments

    /// For hvd: the kernel of the step after `done` ones.
    auto rule(std::uint64_t done) const {
        return hvd::detail::adam_rule<R>(double(rate), double(beta1), double(beta2),
                                         double(epsilon), double(weight_decay), Decoupled,
                                         static_cast<long long>(done) + 1);
    }

    void step(tensors<T> parameters, tensors<T> gradients) {
        detail::for_each(parameters, gradients, [&](std::size_t i, std::span<T> p, std::span<T> g) {
            const double count = detail::slot_of(steps, i, 1)[0] += 1;
            const auto m = detail::slot_of(mean, i, p.size());
            const auto v = detail::slot_of(variance, i, p.size());
            detail::update(rule(std::uint64_t(count) - 1), p, std::span<const T>(g), m.data(),
                           v.data());
        });
    }

    template <class F>
    void for_each_slot(F f) {
        f("mean", mean);
        f("variance", variance);
        f("steps", steps);
    }
    template <class F>
    void for_each_number(F f) {
        f("rate", rate);
        f("beta1", beta1);
        f("beta2", beta2);
        f("epsilon", epsilon);
        f("weight_decay", weight_decay);
    }
};

/// Adam with decoupled weight decay: `adamw<float>{.rate = 0.1f, .weight_decay = 0.05f}`.
template <class T = float>
using adamw = adam<T, true>;

/// Adadelta (Zeiler, arXiv:1212.5701), as PyTorch's `Adadelta`.
template <class T = float>
struct adadelta {
    using value_type = T;
    using R = number<T>;
    R rate = R(1);          ///< the learning rate
    R rho = R(0.9);         ///< decay of the running means
    R epsilon = R(1e-6);    ///< added below the roots
    R weight_decay = R(0);  ///< L2: weight_decay · value is added to the gradient
    slots<R> squares = {};  ///< running mean of squared gradients
    slots<R> changes = {};  ///< running mean of squared changes

    void step(tensors<T> parameters, tensors<T> gradients) {
        const hvd::detail::adadelta_rule<R> rule{rate, rho, epsilon, weight_decay};
        detail::for_each(parameters, gradients, [&](std::size_t i, std::span<T> p, std::span<T> g) {
            const auto s = detail::slot_of(squares, i, p.size());
            const auto c = detail::slot_of(changes, i, p.size());
            detail::update(rule, p, std::span<const T>(g), s.data(), c.data());
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
        f("weight_decay", weight_decay);
    }
};

/// Any of these optimizers for 16-bit parameters T, with a master of each parameter in float: the
/// steps of O, which is for floats, change the masters, and the parameters are the masters rounded.
/// So steps add up that are too small for 16 bits: `float_masters<bfloat16, adam<float>>{{.rate =
/// 1e-3f}}`. The members of O are its own.
///
/// The first step takes the masters from the parameters. They are a slot, so checkpoints and
/// `broadcast_optimizer_state` have them. Clear `master` after setting parameters by other means.
template <class T, class O>
struct float_masters : O {
    static_assert(sizeof(T) == 2 && std::is_same_v<number<T>, float> &&
                      std::is_same_v<typename O::value_type, float>,
                  "hvd: float_masters are for parameters of 16 bits and an optimizer of floats");
    using value_type = T;
    using master_type = float;
    slots<float> master = {};
    /// multiplies each gradient, in float; hvd sets it for a `loss_scale`
    float gradient_factor = 1;

    void step(tensors<T> parameters, tensors<T> gradients) {
        slots<float> in_float(gradients.size());
        std::vector<tensor_view<float>> values(parameters.size()), changes(parameters.size());
        detail::for_each(parameters, gradients, [&](std::size_t i, std::span<T> p, std::span<T> g) {
            values[i] = masters_of(i, p);
            for (const T& x : g) in_float[i].push_back(float(x) * gradient_factor);
            changes[i] = view(in_float[i].data(), p.size());
        });
        O::step(values, changes);
        detail::for_each(parameters, gradients, [&](std::size_t i, std::span<T> p, std::span<T>) {
            for (std::size_t k = 0; k < p.size(); ++k) p[k] = T(master[i][k]);
        });
    }

    /// Steps rows if O does.
    void step_rows(std::size_t i, const tensor_view<T>& table, const sparse_view<T>& rows)
        requires requires(O& o, const tensor_view<float>& masters, const sparse_view<float>& of) {
            o.step_rows(i, masters, of);
        }
    {
        const auto masters = masters_of(i, hvd::detail::elements(table));
        std::vector<float> in_float;
        for (const T& x : rows.values) in_float.push_back(float(x) * gradient_factor);
        O::step_rows(i, masters, sparse_view<float>{rows.indices, in_float});
        hvd::detail::for_each_row(table, rows.indices, rows.values,
                                  [&](std::span<T> row, std::span<const T>) {
                                      const float* from = masters.data() + (&row[0] - table.data());
                                      for (T& x : row) x = T(*from++);
                                  });
    }

    template <class F>
    void for_each_slot(F f) {
        f("master", master);
        O::for_each_slot(f);
    }
    /// True for a slot that a checkpoint may lack while it has the others: a master begins with the
    /// parameter.
    static constexpr bool is_optional_slot(std::string_view name) { return name == "master"; }

private:
    tensor_view<float> masters_of(std::size_t i, std::span<const T> p) {
        if (master.size() <= i) master.resize(i + 1);
        if (master[i].empty()) {
            std::vector<float> first;
            for (const T& x : p) first.push_back(float(x));
            master[i] = std::move(first);
        }
        if (master[i].size() != p.size()) detail::refuse_slot(i, master[i].size(), p.size());
        return view(master[i].data(), p.size());
    }
};

}  // namespace optimizers

/// O can step a model whose elements are T by `step(parameters, gradients)`. The arguments are
/// spans of views with equal sizes pair by pair, in the order of registration. A frozen parameter's
/// views are empty.
template <class O, class T>
concept optimizer_of = requires(O& o, optimizers::tensors<T> list) { o.step(list, list); };

/// O steps sparse parameters by `step_rows(i, table, rows)`: it changes the rows of parameter i
/// that got a gradient, and no others. `rows` has sorted indices, each once.
///
/// A distributed_optimizer then hands it the tables, and an empty view in their place to the `step`
/// that follows. So time depends on the rows, not on the table. If O has `steps_rows()`, tables are
/// stepped whole while that is false.
template <class O, class T>
concept row_optimizer_of =
    optimizer_of<O, T> && requires(O& o, std::size_t i, const tensor_view<T>& table,
                                   const sparse_view<T>& rows) { o.step_rows(i, table, rows); };

/// O holds its parameters and gradients itself, as LibTorch's optimizers do, and has `step()`.
template <class O>
concept self_contained_optimizer = requires(O& o) { o.step(); };

namespace detail {

// O keeps masters, from which each step makes the parameters anew.
template <class O>
concept keeps_masters = requires { typename std::remove_reference_t<O>::master_type; };

// O multiplies the gradients by itself, in its own precision.
template <class O>
concept scales_gradients = requires(O& o) { o.gradient_factor = 1; };

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
template <class Optimizer>
struct optimizer_element<Optimizer&> : optimizer_element<Optimizer> {};

}  // namespace detail

}  // namespace hvd::inline v0
