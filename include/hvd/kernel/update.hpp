// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "reduce.hpp"
#include "update_rules.hpp"

namespace hvd::inline v0::detail {

template <class T, class Rule>
void update_plain(const Rule& rule, std::size_t n, const T* parameters, const T* gradient,
                  T* state1, T* state2, T* out) {
    T none = 0;
    for (std::size_t i = 0; i < n; ++i) {
        T p = parameters[i], g = gradient[i];
        rule(p, g, Rule::states > 0 ? state1[i] : none, Rule::states > 1 ? state2[i] : none);
        out[i] = p;
    }
}

#if HVD_KERNEL_VECTORS

template <int Width, class T, class Rule>
HVD_KERNEL_BODY void update_vectors(const Rule& from, std::size_t n, const T* parameters,
                                    const T* gradient, T* state1, T* state2, T* out) {
    using V = simd_vector<T, Width>;
    constexpr std::size_t size = Width / sizeof(T);
    const Rule rule = from;
    std::size_t i = 0;
    for (; i + size <= n; i += size) {
        V p, g, s{}, t{};
        read_bits(p, parameters + i);
        read_bits(g, gradient + i);
        if constexpr (Rule::states > 0) read_bits(s, state1 + i);
        if constexpr (Rule::states > 1) read_bits(t, state2 + i);
        rule(p, g, s, t);
        if constexpr (Rule::states > 0) write_bits(state1 + i, s);
        if constexpr (Rule::states > 1) write_bits(state2 + i, t);
        write_bits(out + i, p);
    }
    update_plain(rule, n - i, parameters + i, gradient + i, Rule::states > 0 ? state1 + i : state1,
                 Rule::states > 1 ? state2 + i : state2, out + i);
}

template <class T, class Rule>
void update_baseline(const Rule& rule, std::size_t n, const T* p, const T* g, T* s, T* t, T* out) {
    update_vectors<16>(rule, n, p, g, s, t, out);
}
#if HVD_KERNEL_X86

template <class T, class Rule>
HVD_KERNEL_AVX2 void update_avx2(const Rule& rule, std::size_t n, const T* p, const T* g, T* s,
                                 T* t, T* out) {
    update_vectors<32>(rule, n, p, g, s, t, out);
}
template <class T, class Rule>
HVD_KERNEL_AVX512 void update_avx512(const Rule& rule, std::size_t n, const T* p, const T* g, T* s,
                                     T* t, T* out) {
    update_vectors<64>(rule, n, p, g, s, t, out);
}

#endif
#endif

template <class T, class Rule>
auto updater_at([[maybe_unused]] simd_level l) {
    return HVD_KERNEL_AT(l, update, T, Rule);
}

// Does one step for n parameters. `out` gets the new parameters and may be `gradient` or
// `parameters`. States that a rule does not have are null. All levels give the same bits.
template <class T, class Rule>
void update_elements(const Rule& rule, std::size_t n, const T* parameters, const T* gradient,
                     T* state1, T* state2, T* out) {
    updater_at<T, Rule>(best_level())(rule, n, parameters, gradient, state1, state2, out);
}

// Does the same for a rule that may need fewer states than its kind has: those that `states_of`
// does not count are null.
template <class T, class Rule>
void step_elements(const Rule& rule, std::size_t n, const T* parameters, const T* gradient,
                   T* state1, T* state2, T* out) {
    update_elements(rule, n, parameters, gradient, state1, state2, out);
}
template <class T>
void step_elements(const sgd_rule<T>& rule, std::size_t n, const T* parameters, const T* gradient,
                   T* state1, T* state2, T* out) {
    if (states_of(rule) == 0)
        return update_elements(descent_rule<T>{rule.rate, rule.decay}, n, parameters, gradient,
                               state1, state2, out);
    update_elements(rule, n, parameters, gradient, state1, state2, out);
}

}  // namespace hvd::inline v0::detail

#ifdef HVD_COMPILED
#include "update_library.hpp"
#endif
