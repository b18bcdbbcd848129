// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Optimizers that step the rows of a table which got a gradient, and no others.

#include <cmath>
#include <limits>
#include <map>

#include <hvd/train.hpp>

#include "embedding.hpp"

namespace sparse_steps_tests {

using communicator = hvd_test::communicator;
using hvd_test::noise;
namespace optimizers = hvd::optimizers;

namespace {

constexpr std::size_t rows = 50, columns = 3;

// Returns the rows of this rank in a step, some of them twice. Rank 1 has none in odd steps.
template <class T>
hvd::sparse_rows<T> rows_of(int rank, int step) {
    hvd::sparse_rows<T> x;
    if (rank == 1 && step % 2 == 1) return x;
    for (std::size_t i = 0; i < 6; ++i) {
        x.indices.push_back(std::int64_t((i * i * 5 + std::size_t(rank * 3 + step)) % (rows - 9)));
        for (std::size_t c = 0; c < columns; ++c)
            x.values.push_back(
                T(float(noise(std::size_t(rank * 100 + step) * 999 + i * columns + c))));
    }
    return x;
}

// The mean over the ranks: each row once, in double.
std::map<std::int64_t, std::vector<double>> mean_of(int ranks, int step) {
    std::map<std::int64_t, std::vector<double>> mean;
    for (int r = 0; r < ranks; ++r) {
        const auto x = rows_of<double>(r, step);
        for (std::size_t i = 0; i < x.indices.size(); ++i) {
            auto& row = mean[x.indices[i]];
            row.resize(columns);
            for (std::size_t c = 0; c < columns; ++c) row[c] += x.values[i * columns + c] / ranks;
        }
    }
    return mean;
}

// The rule that a lazy step applies to a row: that of the optimizer, for the row alone.
template <class Optimizer>
struct lone_row {
    Optimizer optimizer;
    std::vector<double> values;

    void step(std::vector<double> gradient, int) {
        const hvd::tensor_view<double> p[] = {hvd::view(values.data(), columns)},
                                       g[] = {hvd::view(gradient.data(), columns)};
        optimizer.step(p, g);
    }
};

// Adam's bias is corrected by the steps of the table.
template <bool Decoupled>
struct lone_row<optimizers::adam<double, Decoupled>> {
    optimizers::adam<double, Decoupled> numbers;
    std::vector<double> values, mean = std::vector<double>(columns),
                                variance = std::vector<double>(columns);

    void step(const std::vector<double>& gradient, int steps) {
        for (std::size_t c = 0; c < columns; ++c) {
            const double g = gradient[c];
            mean[c] += (1 - numbers.beta1) * (g - mean[c]);
            variance[c] += (1 - numbers.beta2) * (g * g - variance[c]);
            const double m = mean[c] / (1 - std::pow(numbers.beta1, steps)),
                         v = variance[c] / (1 - std::pow(numbers.beta2, steps));
            values[c] -= numbers.rate *
                         (m / (std::sqrt(v) + numbers.epsilon) + numbers.weight_decay * values[c]);
        }
    }
};

double first_value(std::size_t i) { return noise(i + 4000); }

// Steps a table on all ranks, and each of its rows alone when it has a gradient.
template <class Optimizer>
void check_lazy(communicator& comm, const Optimizer& optimizer,
                const hvd::optimizer_options& options, hvd::sparse_policy policy) {
    std::vector<double> table, gradient(rows * columns), w(2, 1), dw(2);
    std::vector<lone_row<Optimizer>> expected;
    for (std::size_t r = 0; r < rows; ++r) {
        expected.push_back({optimizer, {}});
        for (std::size_t c = 0; c < columns; ++c) {
            table.push_back(first_value(r * columns + c));
            expected[r].values.push_back(table.back());
        }
    }
    hvd::distributed_optimizer distributed(comm, optimizers::lazy_rows<Optimizer>{optimizer},
                                           options);
    const auto dense = distributed.register_parameter("w", w, dw);
    const auto i = distributed.register_sparse("table", table, gradient, columns, policy);
    for (int step = 0; step < 5; ++step) {
        distributed.zero_gradients();
        distributed.gradient_ready(i, rows_of<double>(comm.rank(), step));
        distributed.gradient_ready(dense);
        CHECK(distributed.step());
        for (const auto& [row, mean] : mean_of(comm.size(), step))
            expected[std::size_t(row)].step(mean, step + 1);
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t c = 0; c < columns; ++c)
                CHECK(table[r * columns + c] == doctest::Approx(expected[r].values[c]));
    }
}

}  // namespace

TEST_CASE(
    "a lazy step gives each row with a gradient the step of its optimizer, and no other row") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const auto policy : {hvd::sparse_policy::gather, hvd::sparse_policy::dense}) {
            check_lazy(comm, optimizers::sgd<double>{.rate = 0.1, .weight_decay = 0.1}, {}, policy);
            check_lazy(comm,
                       optimizers::sgd<double>{.rate = 0.1, .momentum = 0.9, .weight_decay = 0.01},
                       {}, policy);
            check_lazy(comm, optimizers::adadelta<double>{}, {}, policy);
            check_lazy(comm, optimizers::adam<double>{.rate = 0.1}, {}, policy);
            check_lazy(comm, optimizers::adamw<double>{.rate = 0.1},
                       {.gradient_predivide_factor = 2}, policy);
        }
    });
}

TEST_CASE(
    "sgd without momentum and weight decay steps rows as it steps the whole table, to the bit") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> table(rows * columns, 1), gradient(table.size()), whole = table,
                                                                             d_whole(table.size());
        hvd::distributed_optimizer by_rows(comm, optimizers::sgd<float>{.rate = 0.3f});
        const auto i = by_rows.register_sparse("table", table, gradient, columns);
        const hvd::tensor_view<float> values[] = {hvd::view(whole.data(), whole.size())},
                                      gradients[] = {hvd::view(d_whole.data(), d_whole.size())};
        for (int step = 0; step < 4; ++step) {
            const auto mine = rows_of<float>(comm.rank(), step);
            by_rows.gradient_ready(i, mine);
            by_rows.step();
            hvd::sparse_allreduce<communicator, float>(comm, mine, hvd::into(d_whole), columns);
            optimizers::sgd<float>{.rate = 0.3f}.step(values, gradients);
            CHECK(table == whole);
            CHECK(gradient == d_whole);
        }
    });
}

TEST_CASE("a step by rows neither reads nor writes the other rows of the table and its gradient") {
    hvd_test::on_ranks([](communicator& comm) {
        constexpr double nan = std::numeric_limits<double>::quiet_NaN();
        const auto check = [&](auto optimizer) {
            std::vector<double> table(rows * columns, 1), gradient(table.size(), nan);
            hvd::distributed_optimizer distributed(comm, optimizer, {.skip_nonfinite = true});
            const auto i = distributed.register_sparse("table", table, gradient, columns);
            const hvd::sparse_rows<double> some = {{2, 0, 2}, std::vector<double>(9, 1)};
            distributed.gradient_ready(i, some);
            CHECK(distributed.step());
            CHECK(gradient[5 * columns] == 0);  // the first step clears all of it
            gradient[5 * columns] = nan;
            for (int step = 0; step < 3; ++step) {
                distributed.zero_gradients();
                CHECK(gradient[2 * columns] == 0);
                if (comm.rank() == 0) distributed.gradient_ready(i, some);
                else distributed.nothing_ready();
                auto gradients = distributed.synchronize();
                CHECK(gradient[2 * columns] == doctest::Approx(2.0 / comm.size()));
                CHECK(hvd::clip_by_norm(gradients, 0.1) ==
                      doctest::Approx(std::sqrt(15.0) / comm.size()));
                CHECK(hvd::global_norm(gradients) == doctest::Approx(0.1));
                CHECK(distributed.apply(std::move(gradients)));
                CHECK(table[0] != 1);
                CHECK(table[5 * columns] == 1);
            }
            distributed.gradient_ready(i, hvd::sparse_rows<double>{{1}, {nan, 1, 1}});
            CHECK_FALSE(distributed.step());
            CHECK(table[columns] == 1);
            gradient[5 * columns] = nan;
            distributed.zero_gradients();
            distributed.gradient_ready(i, hvd::sparse_rows<double>{{3}, {1, 1, 1}});
            CHECK(distributed.step());
            CHECK(std::isnan(gradient[5 * columns]));
            CHECK(gradient[columns] == 0);  // the rows of the step that was left out are cleared
        };
        check(optimizers::sgd<double>{.rate = 0.5});
        check(optimizers::lazy_rows<optimizers::adam<double>>{});
    });
}

TEST_CASE("sgd with weight decay steps whole tables, and one without again by rows") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<double> table(rows * columns, 1), gradient(table.size());
        hvd::distributed_optimizer distributed(
            comm, optimizers::sgd<double>{.rate = 1, .weight_decay = 0.5});
        const auto i = distributed.register_sparse("table", table, gradient, columns);
        const hvd::sparse_rows<double> one = {{2}, {1, 1, 1}};
        distributed.gradient_ready(i, one);
        distributed.step();
        CHECK(table[0] == 0.5);
        CHECK(table[2 * columns] == -0.5);
        distributed.optimizer().weight_decay = 0;
        gradient[0] = 7;  // a whole step has not said that nobody writes here
        distributed.gradient_ready(i, one);
        distributed.step();
        CHECK(gradient[0] == 0);
        CHECK(table[0] == 0.5);
        CHECK(table[2 * columns] == -1.5);
    });
}

TEST_CASE("lazy rows are stepped in their masters") {
    hvd_test::on_ranks([](communicator& comm) {
        using hvd::bfloat16;
        std::vector<bfloat16> table(rows * columns, bfloat16(1.0f)),
            gradient(table.size(), bfloat16(0.0f));
        hvd::distributed_optimizer distributed(
            comm,
            optimizers::float_masters<bfloat16, optimizers::lazy_rows<optimizers::sgd<float>>>{
                {{.rate = 1.0f / 1024}}});
        const auto i = distributed.register_sparse("table", table, gradient, columns);
        const hvd::sparse_rows<bfloat16> one = {{2},
                                                {bfloat16(1.0f), bfloat16(-1.0f), bfloat16(0.0f)}};
        for (int step = 0; step < 64; ++step) {  // a step of 1/1024 is lost in bfloat16
            distributed.gradient_ready(i, one);
            distributed.step();
        }
        CHECK(float(table[2 * columns]) == 1 - 64.0f / 1024);
        CHECK(float(table[2 * columns + 1]) == 1 + 64.0f / 1024);
        CHECK(float(table[2 * columns + 2]) == 1);
        CHECK(float(table[0]) == 1);
    });
}

TEST_CASE("an optimizer of the user steps rows, and the dense parameters after them") {
    struct own {
        using value_type = float;
        std::vector<std::vector<std::size_t>>* calls;
        void step(optimizers::tensors<float> p, optimizers::tensors<float>) {
            calls->push_back({p[0].size(), p[1].size()});
        }
        void step_rows(std::size_t i, const hvd::tensor_view<float>& table,
                       const hvd::sparse_view<float>& of) {
            calls->push_back({i, table.size(), of.indices.size(), of.values.size()});
        }
    };
    static_assert(hvd::row_optimizer_of<own, float>);
    static_assert(!hvd::row_optimizer_of<optimizers::adam<float>, float>);
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<std::vector<std::size_t>> calls;
        std::vector<float> table(8), gradient(8), w(3), dw(3);
        hvd::distributed_optimizer distributed(comm, own{&calls});
        const auto t = distributed.register_sparse("table", table, gradient, 2);
        distributed.register_parameter("w", w, dw);
        const hvd::sparse_rows<float> some = {{3, 1, 3}, {1, 1, 2, 2, 3, 3}};
        distributed.gradient_ready(t, some);
        distributed.step();
        distributed.freeze(t);
        distributed.step();
        CHECK(calls == std::vector<std::vector<std::size_t>>{{0, 8, 2, 4}, {0, 3}, {0, 3}});
    });
}

}  // namespace sparse_steps_tests
