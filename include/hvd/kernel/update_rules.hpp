// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "host_device.hpp"
#include "simd/vector.hpp"

namespace hvd::inline v0::detail {

// The bodies of rules run on the device as well, for scalars.
#define HVD_RULE_BODY HVD_KERNEL_HOST_DEVICE HVD_KERNEL_BODY

// A rule is one step of an optimizer for one parameter p with gradient g and two numbers of state,
// all scalars or all vectors. Its constructor computes the values that all parameters share. Every
// product is rounded, so that all levels give the same bits.

template <class A>
HVD_RULE_BODY void root_of(A& x) {
#ifdef __CUDA_ARCH__
    if constexpr (std::is_same_v<A, float>) x = __fsqrt_rn(x);
    else x = __dsqrt_rn(x);
#else
    if constexpr (std::is_same_v<A, float>) x = __builtin_sqrtf(x);
    else if constexpr (std::is_same_v<A, double>) x = __builtin_sqrt(x);
#if HVD_KERNEL_VECTORS
    else square_root(x);
#endif
#endif
}

// Computes x *= by, rounded. It is not contracted with a following addition, so that all levels
// give the same bits.
template <class A, class B>
HVD_RULE_BODY void times(A& x, const B& by) {
#ifdef __CUDA_ARCH__
    if constexpr (std::is_same_v<A, float>) x = __fmul_rn(x, by);
    else x = __dmul_rn(x, by);
#else
    x *= by;
#if defined(__GNUC__) && !defined(__clang__)
    if constexpr (std::is_floating_point_v<A>) x = __builtin_assoc_barrier(x);
#if HVD_KERNEL_VECTORS
    else asm("" : "+" HVD_KERNEL_OPERAND(x));
#endif
#endif
#endif
}

// Computes x /= by, rounded, whatever the compiler's options are.
template <class A>
HVD_RULE_BODY void divide(A& x, const A& by) {
#ifdef __CUDA_ARCH__
    if constexpr (std::is_same_v<A, float>) x = __fdiv_rn(x, by);
    else x = __ddiv_rn(x, by);
#else
    x /= by;
#endif
}

// Computes x += y * by, each rounded.
template <class A, class B>
HVD_RULE_BODY void add(A& x, const A& y, const B& by) {
    A product = y;
    times(product, by);
    x += product;
}

// Adds weight decay to the gradient (L2). Without decay p is not multiplied, so that an infinity
// makes no NaN of the gradient.
template <class V, class T>
HVD_RULE_BODY void add_decay(V& g, const V& p, T decay) {
    if (decay != 0) add(g, p, decay);
}

// Computes p -= rate (g + decay p).
template <class T>
struct descent_rule {
    T rate, decay;
    static constexpr int states = 0;

    template <class V>
    HVD_RULE_BODY void operator()(V& p, V& g, V&, V&) const {
        add_decay(g, p, decay);
        add(p, g, -rate);
    }
};

// Computes v = momentum v + (1 - dampening) g and p -= rate v, or with Nesterov p -= rate (g +
// momentum v). Weight decay is added to the gradient. The first step takes v = g, as libtorch does;
// `fresh` marks it. Without momentum v is left as it is, and the step is that of descent_rule.
template <class T>
struct sgd_rule {
    T rate, momentum, dampening, decay;
    bool nesterov, fresh;
    static constexpr int states = 1;

    template <class V>
    HVD_RULE_BODY void operator()(V& p, V& g, V& v, V&) const {
        add_decay(g, p, decay);
        if (momentum != 0) {
            if (fresh) {
                v = g;
            } else {
                times(v, momentum);
                add(v, g, 1 - dampening);
            }
            if (nesterov) add(g, v, momentum);
            else g = v;
        }
        add(p, g, -rate);
    }
};

// Adam (arXiv:1412.6980): m and v are running means of g and of its square. With `decoupled` the
// decay is taken from the parameter, as in AdamW (arXiv:1711.05101). Otherwise it is added to the
// gradient.
template <class T>
struct adam_rule {
    T beta1, beta2, epsilon, decay;
    T step_size, correction2;  // rate / (1 - beta1^t), 1 / (1 - beta2^t)
    T kept;                    // 1 - rate * decay
    bool decoupled;
    static constexpr int states = 2;

    HVD_KERNEL_HOST_DEVICE constexpr adam_rule(double rate, double beta1_, double beta2_,
                                               double epsilon_, double decay_, bool decoupled_,
                                               double step_size_, double correction2_)
        : beta1(T(beta1_)),
          beta2(T(beta2_)),
          epsilon(T(epsilon_)),
          decay(T(decay_)),
          step_size(T(step_size_)),
          correction2(T(correction2_)),
          kept(T(1 - rate * decay_)),
          decoupled(decoupled_) {}

    // `step` counts from 1.
    adam_rule(double rate, double beta1_, double beta2_, double epsilon_, double decay_,
              bool decoupled_, long long step)
        : adam_rule(rate, beta1_, beta2_, epsilon_, decay_, decoupled_,
                    rate / (1 - __builtin_pow(beta1_, double(step))),
                    1 / (1 - __builtin_pow(beta2_, double(step)))) {}

    template <class V>
    HVD_RULE_BODY void operator()(V& p, V& g, V& m, V& v) const {
        if (decoupled) times(p, kept);
        else add_decay(g, p, decay);
        times(m, beta1);
        add(m, g, 1 - beta1);
        times(v, beta2);
        times(g, g);
        add(v, g, 1 - beta2);
        V root = v, step = m;
        times(root, correction2);
        root_of(root);
        root += epsilon;
        times(step, step_size);
        divide(step, root);
        p -= step;
    }
};

// Adadelta (arXiv:1212.5701): s and c are running means of the squares of gradients and of changes.
template <class T>
struct adadelta_rule {
    T rate, rho, epsilon, decay;
    static constexpr int states = 2;

    template <class V>
    HVD_RULE_BODY void operator()(V& p, V& g, V& s, V& c) const {
        add_decay(g, p, decay);
        V square = g;
        times(square, g);
        times(s, rho);
        add(s, square, 1 - rho);
        V change = c, root = s;
        change += epsilon;
        root += epsilon;
        divide(change, root);
        root_of(change);
        times(change, g);
        square = change;
        times(square, change);
        times(c, rho);
        add(c, square, 1 - rho);
        add(p, change, -rate);
    }
};

// The numbers of state that a step by a rule reads and changes.
template <class Rule>
constexpr int states_of(const Rule&) {
    return Rule::states;
}
template <class T>
constexpr int states_of(const sgd_rule<T>& rule) {
    return rule.momentum != 0 ? 1 : 0;
}

}  // namespace hvd::inline v0::detail
