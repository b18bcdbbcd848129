// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "vector.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A rule is one step of an optimizer for one parameter p with gradient g and two numbers of state, all
// scalars or all vectors. What is the same for all parameters is computed when it is made.

template <class A>
HVD_KERNEL_BODY void root_of(A& x) {
    if constexpr (std::is_same_v<A, float>) x = __builtin_sqrtf(x);
    else if constexpr (std::is_same_v<A, double>) x = __builtin_sqrt(x);
#if HVD_KERNEL_VECTORS
    else square_root(x);
#endif
}

// v = momentum v + (1 - dampening) g;  p -= rate v, or with Nesterov rate (g + momentum v). Weight decay
// is added to the gradient. As libtorch does, the first step takes v = g: `fresh` says that it is that.
template <class T>
struct sgd_rule {
    T rate, momentum, dampening, decay;
    bool nesterov, fresh;
    static constexpr int states = 1;

    template <class V>
    HVD_KERNEL_BODY void operator()(V& p, V& g, V& v, V&) const {
        g += decay * p;
        if (fresh) v = g;
        else v = momentum * v + (1 - dampening) * g;
        if (nesterov) p -= rate * (g + momentum * v);
        else p -= rate * v;
    }
};

// Adam (arXiv:1412.6980): m and v are running means of g and of its square. With `decoupled` the decay is
// taken from the parameter, as in AdamW (arXiv:1711.05101), otherwise added to the gradient.
template <class T>
struct adam_rule {
    T rate, beta1, beta2, epsilon, decay;
    T correction1, correction2;  // 1 / (1 - beta1^t), 1 / (1 - beta2^t)
    bool decoupled;
    static constexpr int states = 2;

    adam_rule(double rate_, double beta1_, double beta2_, double epsilon_, double decay_, bool decoupled_, long long step)
        : rate(T(rate_)), beta1(T(beta1_)), beta2(T(beta2_)), epsilon(T(epsilon_)), decay(T(decay_)),
          correction1(T(1 / (1 - __builtin_pow(beta1_, double(step))))),
          correction2(T(1 / (1 - __builtin_pow(beta2_, double(step))))), decoupled(decoupled_) {}

    template <class V>
    HVD_KERNEL_BODY void operator()(V& p, V& g, V& m, V& v) const {
        if (decoupled) p -= (rate * decay) * p;
        else g += decay * p;
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        V root = v * correction2;
        root_of(root);
        p -= rate * correction1 * m / (root + epsilon);
    }
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
