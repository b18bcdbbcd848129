// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <vector>

#include <hvd/protocol/step_question.hpp>

#include "hvd_test.hpp"

namespace hvd_test {

// Returns a number in [-1, 1) that depends on `n` only.
inline double noise(std::uint64_t n) {
    n = (n + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return double((n ^ (n >> 31)) >> 11) / double(std::uint64_t(1) << 52) - 1;
}

// The model is y = b + w·x + v·x² with squared error. It has three parameters, with gradients
// computed by hand. Each rank sums over its samples of the global batch, times the number of ranks.
// So an average over ranks is the mean over the batch, however many samples each has.
struct regression {
    static constexpr std::size_t width = 6;
    static constexpr std::size_t batch = 24;

    std::pmr::vector<double> w, v, b, dw, dv, db;

    explicit regression(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
        : w(width, memory),
          v(width, memory),
          b(1, 0.5, memory),
          dw(width, memory),
          dv(width, memory),
          db(1, memory) {
        for (std::size_t k = 0; k < width; ++k) {
            w[k] = noise(k);
            v[k] = noise(100 + k);
        }
    }

    void zero() {
        for (auto* g : {&dw, &dv, &db}) g->assign(g->size(), 0);
    }

    // Adds the gradients of this rank's samples, from first on, and reports them from last to
    // first.
    void backward(
        int step, std::size_t first, std::size_t last, int rank, int size,
        const std::function<void(std::size_t)>& ready = [](std::size_t) {}) {
        const double scale = double(size) / batch;
        for (std::size_t s = first; s < last; ++s) {
            if (int(s % std::size_t(size)) != rank) continue;
            const auto x = [&](std::size_t k) {
                return noise((std::uint64_t(step) * batch + s) * width + k + 1000);
            };
            double error = b[0] - std::sin(x(0)) - x(1);
            for (std::size_t k = 0; k < width; ++k) error += (w[k] + v[k] * x(k)) * x(k);
            for (std::size_t k = 0; k < width; ++k) {
                dw[k] += scale * 2 * error * x(k);
                dv[k] += scale * 2 * error * x(k) * x(k);
            }
            db[0] += scale * 2 * error;
        }
        for (const std::size_t i : {2, 1, 0}) ready(i);
    }

    template <class Optimizer>
    void register_with(Optimizer& optimizer) {
        optimizer.register_parameter("w", w, dw);
        optimizer.register_parameter("v", v, dv);
        optimizer.register_parameter("b", b, db);
    }

    std::vector<double> all() const {
        std::vector<double> values(w.begin(), w.end());
        values.insert(values.end(), v.begin(), v.end());
        values.insert(values.end(), b.begin(), b.end());
        return values;
    }
};

// Trains one rank with the whole batch, without hvd.
template <class Optimizer>
std::vector<double> trained_alone(Optimizer optimizer, int steps, double gradient_factor = 1) {
    regression model;
    for (int step = 0; step < steps; ++step) {
        model.zero();
        model.backward(step, 0, regression::batch, 0, 1);
        for (auto* g : {&model.dw, &model.dv, &model.db})
            for (double& x : *g) x *= gradient_factor;
        const hvd::tensor_view<double> values[] = {hvd::view(model.w.data(), model.w.size()),
                                                   hvd::view(model.v.data(), model.v.size()),
                                                   hvd::view(model.b.data(), 1)};
        const hvd::tensor_view<double> gradients[] = {hvd::view(model.dw.data(), model.w.size()),
                                                      hvd::view(model.dv.data(), model.v.size()),
                                                      hvd::view(model.db.data(), 1)};
        optimizer.step(values, gradients);
    }
    return model.all();
}

// Returns the largest absolute difference.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return INFINITY;
    double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double d = std::abs(a[i] - b[i]);
        if (!(d <= most)) most = d;
    }
    return most;
}

// Asks one rank alone, or none.
class asked_rank final : public hvd::detail::step_question {
public:
    explicit asked_rank(bool says)
        : step_question([](step_question& self) { return static_cast<asked_rank&>(self).says_; }),
          says_(says) {}

private:
    bool says_;
};

}  // namespace hvd_test
