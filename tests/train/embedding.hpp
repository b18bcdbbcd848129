// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <hvd/train/sparse/sparse.hpp>

#include "model.hpp"

namespace hvd_test {

// The model is y = b + table[id] · x with squared error. A batch uses some rows of the table, and
// some of them several times.
struct embedding {
    static constexpr std::size_t rows = 20, columns = 3, batch = 24;

    std::vector<double> table, b, d_table, d_b;
    hvd::sparse_rows<double> d_rows;  // the same gradient as d_table, from the last backward pass

    embedding() : b{0.5}, d_table(rows * columns), d_b(1) {
        for (std::size_t i = 0; i < rows * columns; ++i) table.push_back(noise(i));
    }

    void zero() {
        d_table.assign(d_table.size(), 0);
        d_b.assign(1, 0);
    }

    // Adds the gradients of this rank's samples, from first on, to the dense gradients.
    void backward(int step, std::size_t first, std::size_t last, int rank, int size) {
        d_rows = {};
        const double scale = double(size) / batch;
        for (std::size_t s = first; s < last; ++s) {
            if (int(s % std::size_t(size)) != rank) continue;
            const std::uint64_t sample = std::uint64_t(step) * batch + s;
            // some rows are never used
            const std::size_t id = (sample * sample * 7 + sample) % (rows - 4);
            const auto x = [&](std::size_t c) { return noise(sample * columns + c + 5000); };
            double error = b[0] - x(0) - 0.1 * double(id);
            for (std::size_t c = 0; c < columns; ++c) error += table[id * columns + c] * x(c);
            d_rows.indices.push_back(std::int64_t(id));
            for (std::size_t c = 0; c < columns; ++c) {
                d_rows.values.push_back(scale * 2 * error * x(c));
                d_table[id * columns + c] += d_rows.values.back();
            }
            d_b[0] += scale * 2 * error;
        }
    }

    std::vector<double> all() const {
        std::vector<double> values = table;
        values.insert(values.end(), b.begin(), b.end());
        return values;
    }

    // Trains one rank with the whole batch, without hvd's distribution.
    template <class Optimizer>
    static std::vector<double> trained_alone(Optimizer optimizer, int steps) {
        embedding model;
        for (int step = 0; step < steps; ++step) {
            model.zero();
            model.backward(step, 0, batch, 0, 1);
            const hvd::tensor_view<double> values[] = {
                hvd::view(model.table.data(), model.table.size()), hvd::view(model.b.data(), 1)};
            const hvd::tensor_view<double> gradients[] = {
                hvd::view(model.d_table.data(), model.d_table.size()),
                hvd::view(model.d_b.data(), 1)};
            optimizer.step(values, gradients);
        }
        return model.all();
    }
};

}  // namespace hvd_test
