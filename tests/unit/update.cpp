// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <hvd/kernel/reduce.hpp>
#include <hvd/kernel/update.hpp>

#include "checksum.hpp"

namespace update_tests {

// An optimizer's step in place over reduced gradients, against a serial step in long double. Every
// processor gives the same bits.

namespace {

using hvd::detail::simd_level;

template <class T>
struct problem {
    int ranks;
    std::size_t n;
    std::vector<std::vector<T>> gradients;
    std::vector<T> parameters, state1, state2;

    problem(int ranks_, std::size_t n_)
        : ranks(ranks_), n(n_), parameters(n), state1(n), state2(n) {
        for (int r = 0; r < ranks; ++r) {
            gradients.emplace_back(n);
            for (std::size_t i = 0; i < n; ++i)
                gradients.back()[i] = number(std::sin(double(i * 7 + std::size_t(r) * 3)));
        }
        for (std::size_t i = 0; i < n; ++i) parameters[i] = number(std::cos(double(i)));
    }

    // The last bits of sines differ between processors, so these have fewer.
    static T number(double of) { return T(std::nearbyint(of * 0x1p20) * 0x1p-20); }

    template <class Rule>
    void step(simd_level l, const Rule& rule) {
        std::vector<const std::byte*> inputs;
        for (auto& g : gradients) inputs.push_back(reinterpret_cast<const std::byte*>(g.data()));
        std::vector<T> mean(n);
        hvd::detail::reduce_elements_at<T, hvd::op::average>(
            l, {&hvd::average, inputs.data(), ranks, ranks,
                reinterpret_cast<std::byte*>(mean.data()), n, 1, 1});
        hvd::detail::updater_at<T, Rule>(l)(rule, n, parameters.data(), mean.data(), state1.data(),
                                            Rule::states > 1 ? state2.data() : nullptr,
                                            mean.data());
        parameters = mean;
    }

    long double gradient(std::size_t i) const {
        long double sum = 0;
        for (const auto& g : gradients) sum += g[i];
        return sum / ranks;
    }
};

// Takes five steps on every level and compares them with `serial(p, g, first state, second state,
// step)`.
template <class T, class Make, class Serial>
void five_steps(hvd_test::checksum& all, Make make, Serial serial) {
    for (const simd_level l : hvd::detail::simd_levels) {
        if (!hvd::detail::runs_here(l)) continue;
        for (const int ranks : {1, 2, 3, 4})
            for (const std::size_t n : {1, 7, 16, 1023, 2061}) {
                CAPTURE(int(l));
                CAPTURE(ranks);
                CAPTURE(n);
                problem<T> x(ranks, n);
                std::vector<long double> p(x.parameters.begin(), x.parameters.end()), s(n), t(n);
                problem<T> plain(ranks, n);
                for (int step = 1; step <= 5; ++step) {
                    x.step(l, make(step));
                    plain.step(simd_level::plain, make(step));
                    for (std::size_t i = 0; i < n; ++i)
                        serial(p[i], x.gradient(i), s[i], t[i], step);
                }
                long double worst = 0;
                for (std::size_t i = 0; i < n; ++i)
                    worst = std::max(worst, std::abs(p[i] - x.parameters[i]));
                CHECK(worst < (sizeof(T) == 4 ? 5e-6L : 1e-14L));
                CHECK(x.parameters == plain.parameters);
                CHECK(x.state1 == plain.state1);
                CHECK(x.state2 == plain.state2);
                if (l != simd_level::plain) continue;
                all.add(x.parameters);
                all.add(x.state1);
                all.add(x.state2);
            }
    }
}

using real = long double;

}  // namespace

TEST_CASE_TEMPLATE("stochastic gradient descent with momentum", T, float, double) {
    hvd_test::checksum all;
    for (const bool nesterov : {false, true})
        five_steps<T>(
            all,
            [&](int step) {
                return hvd::detail::sgd_rule<T>{T(0.125),  T(0.75),  T(0.25),
                                                T(0.0625), nesterov, step == 1};
            },
            [&](real& p, real g, real& v, real&, int step) {
                g += 0.0625L * p;
                v = step == 1 ? g : 0.75L * v + 0.75L * g;
                p -= 0.125L * (nesterov ? g + 0.75L * v : v);
            });
    CHECK(all.value == (sizeof(T) == 4 ? 0x02d372b7b1322c21 : 0xb5ec5059d8fc0312));
}

TEST_CASE_TEMPLATE("Adam and AdamW", T, float, double) {
    hvd_test::checksum all;
    for (const bool decoupled : {false, true})
        five_steps<T>(
            all,
            [&](int step) {
                return hvd::detail::adam_rule<T>(0.0625, 0.875, 0.96875, 0x1p-20, 0.125, decoupled,
                                                 step);
            },
            [&](real& p, real g, real& m, real& v, int step) {
                if (decoupled) p -= 0.0625L * 0.125L * p;
                else g += 0.125L * p;
                m = 0.875L * m + 0.125L * g;
                v = 0.96875L * v + 0.03125L * g * g;
                p -= 0.0625L * (m / (1 - std::pow(0.875L, real(step)))) /
                     (std::sqrt(v / (1 - std::pow(0.96875L, real(step)))) + 0x1p-20L);
            });
    CHECK(all.value == (sizeof(T) == 4 ? 0xd20915f99d5b7128 : 0x14a75b57ac5de6c6));
}

}  // namespace update_tests
