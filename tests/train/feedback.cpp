// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Tests of error feedback: gradients differ between ranks, and what was applied stays within one
// rounding of the exact sum at any step.

#include <algorithm>
#include <cmath>
#include <limits>

#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>

#include "model.hpp"
#include "shared_folder.hpp"

namespace feedback_tests {

using communicator = hvd_test::communicator;
using hvd::gradient_codec;
using hvd::gradient_op;
using hvd_test::noise;
namespace optimizers = hvd::optimizers;

namespace {

constexpr std::size_t sizes[] = {1, 7, 50, 0, 130};
constexpr std::size_t total = 188;

// The largest error of one rounding of `y`.
double rounding(gradient_codec codec, double y) {
    return codec.travels_as<hvd::float16>() ? std::max(std::abs(y) / 2048, 3e-8)
                                            : std::abs(y) / 256;
}

// Tensors whose gradients differ between ranks, and the sums of what was applied and of what should
// have been.
template <class T>
struct trainer {
    std::vector<std::vector<T>> values, gradients;
    std::vector<double> applied = std::vector<double>(total), exact = std::vector<double>(total);
    std::vector<double> largest = std::vector<double>(total);  // values that were rounded
    int steps = 0;
    hvd::optimizer_options options;
    hvd::distributed_optimizer<communicator, optimizers::sgd<T>> optimizer;

    trainer(communicator& comm, const hvd::optimizer_options& o)
        : options(o), optimizer(comm, optimizers::sgd<T>{1}, o) {
        for (const std::size_t n : sizes) {
            values.emplace_back(n);
            gradients.emplace_back(n);
        }
        for (std::size_t i = 0; i < std::size(sizes); ++i)
            optimizer.register_parameter("p" + std::to_string(i), values[i], gradients[i]);
    }

    // The gradient of one rank's pass.
    static T element(int step, int pass, int rank, std::size_t k) {
        const double x =
            noise(std::uint64_t(step * 7 + pass) * 4096 + std::uint64_t(rank) * 1000 + k);
        return T(k % 3 == 0 ? 1 + 0.01 * x + 0.001 * rank : x);
    }

    void backward(int step, std::size_t unreported = 0) {
        optimizer.zero_gradients();
        for (int pass = 0; pass < options.backward_passes_per_step; ++pass) {
            std::size_t k = 0;
            for (auto& g : gradients)
                for (T& x : g) x += element(step, pass, optimizer.comm().rank(), k++);
            for (std::size_t i = std::size(sizes); i-- > unreported;) optimizer.gradient_ready(i);
        }
    }

    // Adds the gradients of a step that was made.
    void count(int step) {
        const int ranks = optimizer.comm().size(), passes = options.backward_passes_per_step;
        ++steps;
        std::size_t k = 0;
        for (const auto& g : gradients)
            for (const T& x : g) applied[k++] += double(x);
        for (k = 0; k < total; ++k) {
            double sum = 0;
            for (int r = 0; r < ranks; ++r)
                for (int pass = 0; pass < passes; ++pass) sum += double(element(step, pass, r, k));
            if (options.op == hvd::average) sum /= ranks;
            if (options.average_passes) sum /= passes;
            exact[k] += sum;
            largest[k] = std::max(largest[k], std::abs(sum));
        }
    }

    void step(int n) {
        backward(n);
        optimizer.step();
        count(n);
    }

    // The sums of the ranks are in float, whose last bits may differ in every step.
    void check() const {
        double most = 0;
        for (std::size_t k = 0; k < total; ++k)
            most = std::max(most, std::abs(applied[k] - exact[k]) /
                                      (rounding(options.codec, 1.01 * largest[k]) + 1e-7 * steps));
        CHECK(most <= 1);
    }
};

std::vector<hvd::optimizer_options> variants() {
    std::vector<hvd::optimizer_options> all;
    for (const auto codec : std::initializer_list<hvd::gradient_codec>{
             hvd::codec::cast<hvd::float16>, hvd::codec::cast<hvd::bfloat16>}) {
        all.push_back({.codec = codec});
        all.push_back({.op = hvd::sum, .bucket_bytes = 1, .codec = codec});
        all.push_back({.groups = {{0, 4}, {1}},
                       .backward_passes_per_step = 2,
                       .average_passes = true,
                       .gradient_predivide_factor = 3,
                       .codec = codec,
                       .skip_nonfinite = true});
    }
    for (auto& o : all) o.codec = hvd::codec::error_feedback(o.codec);
    return all;
}

template <class T>
void check_steps(communicator& comm, int steps) {
    for (const auto& options : variants()) {
        trainer<T> t(comm, options);
        for (int step = 0; step < steps; ++step) {
            t.step(step);
            t.check();
        }
    }
}

}  // namespace

TEST_CASE("with error feedback nothing is lost of gradients that differ between ranks") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto lost = [&](gradient_codec codec, double gradient, double exact_mean) {
            constexpr int steps = 1000;
            std::vector<float> x(2), dx(2);
            hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1},
                                                   {.codec = hvd::codec::error_feedback(codec)});
            distributed.register_parameter("x", x, dx);
            for (int step = 0; step < steps; ++step) {
                dx.assign(2, float(gradient));
                distributed.step();
            }
            return std::abs(x[1] + steps * exact_mean);
        };
        const int rank = comm.rank(), size = comm.size();
        CHECK(lost(hvd::codec::cast<hvd::bfloat16>, 1 + 0.001 * rank, 1 + 0.0005 * (size - 1)) <
              0.008);
        CHECK(lost(hvd::codec::cast<hvd::float16>, rank == 0 ? 1e-8 : 0, 1e-8 / size) < 6e-8);
    });
}

TEST_CASE("at any step what was applied is within one rounding of the exact sum") {
    hvd_test::on_ranks([](communicator& comm) {
        check_steps<float>(comm, 50);
        check_steps<double>(comm, 20);
    });
}

TEST_CASE("so it is on several nodes") {
#ifdef HVD_TEST_BACKEND_THREADS
    for (const int ranks : {3, 4})
        hvd::run_threads(ranks, [](communicator& comm) { check_steps<float>(comm, 20); },
                         {.node_size = 2});
#else
    hvd_test::on_ranks([](communicator&) {
        auto nodes = communicator::world({.node_size = 2});
        check_steps<float>(nodes, 20);
    });
#endif
}

TEST_CASE("steps that are skipped, dropped or abandoned consume no residual") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const auto& options : variants()) {
            trainer<float> t(comm, options);
            for (int step = 0; step < 30; ++step) {
                const bool abandons = step % 3 != 0 && step % 5 == 0;
                t.backward(step, abandons ? 1 : 0);
                if (step % 3 == 0) {
                    (void)t.optimizer.synchronize();
                } else if (abandons) {
                    t.optimizer.abandon();
                } else if (step % 7 == 0 && options.skip_nonfinite) {
                    auto synchronized = t.optimizer.synchronize();
                    t.gradients[4][5] = std::numeric_limits<float>::infinity();
                    CHECK_FALSE(t.optimizer.apply(std::move(synchronized)));
                } else {
                    t.optimizer.step();
                    t.count(step);
                    t.check();
                }
            }
        }
    });
}

TEST_CASE("a step that one rank abandons fails on the others, and consumes no residual") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const auto& options : variants())
            for (const int reported : {0, 1, 4, 5}) {
                if (reported == 5 && !options.skip_nonfinite) continue;  // the peers' step succeeds
                trainer<float> t(comm, options);
                for (int step = 0; step < 12; ++step) {
                    if (step % 3 != 2) {
                        t.step(step);
                        t.check();
                        continue;
                    }
                    t.optimizer.zero_gradients();
                    const bool gives_up = comm.rank() == 1;
                    const auto reports = [&] {
                        for (int pass = 0; pass < options.backward_passes_per_step; ++pass)
                            for (int i = 4; i > 4 - (gives_up ? reported : 5); --i)
                                t.optimizer.gradient_ready(std::size_t(i));
                    };
                    if (gives_up) {
                        reports();
                        t.optimizer.abandon("no memory");
                    } else {
                        CHECK_THROWS_AS((reports(), t.optimizer.step()), hvd::peer_error);
                    }
                }
            }
    });
}

TEST_CASE("residuals stay with their parameters while others are frozen") {
    hvd_test::on_ranks([](communicator& comm) {
        trainer<float> t(comm,
                         {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)});
        for (int step = 0; step < 40; ++step) {
            if (step % 4 == 0) t.optimizer.freeze(3);
            if (step % 4 == 2) t.optimizer.unfreeze(3);
            t.step(step);
            t.check();
        }
    });
}

TEST_CASE(
    "rows of tables that differ between ranks are rounded with feedback, however they travel") {
    hvd_test::on_ranks([](communicator& comm) {
        using hvd::sparse_policy;
        for (const auto policy : {sparse_policy::gather, sparse_policy::dense})
            for (const auto op : std::initializer_list<hvd::gradient_op>{hvd::average, hvd::sum}) {
                constexpr std::size_t rows = 8, columns = 3;
                const int size = comm.size();
                std::vector<float> table(rows * columns), gradient(table.size());
                std::vector<double> exact(table.size()), applied(table.size());
                hvd::distributed_optimizer distributed(
                    comm, optimizers::sgd<float>{1},
                    {.op = op,
                     .gradient_predivide_factor = op == hvd::average ? 3.0 : 1,
                     .codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)});
                const std::size_t i =
                    distributed.register_sparse("table", table, gradient, columns, policy);
                const auto value = [&](int step, int rank, std::size_t k) {
                    return float(1 + 0.001 * rank + 0.01 * noise(std::uint64_t(step) * 100 + k));
                };
                // rank r has rows r and r + 1
                for (int step = 0; step < 200; ++step) {
                    hvd::sparse_rows<float> mine;
                    for (int r = 0; r < size; ++r)
                        for (const int row : {r, r + 1})
                            for (std::size_t c = 0; c < columns; ++c) {
                                const float x = value(step, r, std::size_t(row) * columns + c);
                                if (step % 4 != 1)
                                    exact[std::size_t(row) * columns + c] +=
                                        double(x) / (op == hvd::average ? size : 1);
                                if (r != comm.rank()) continue;
                                if (c == 0) mine.indices.push_back(row);
                                mine.values.push_back(x);
                            }
                    distributed.gradient_ready(i, mine);
                    auto reduced = distributed.synchronize();
                    if (step % 4 == 1) continue;  // this step is dropped
                    for (std::size_t k = 0; k < table.size(); ++k)
                        applied[k] += double(gradient[k]);
                    distributed.apply(std::move(reduced));
                    double most = 0;
                    for (std::size_t k = 0; k < table.size(); ++k)
                        most = std::max(most, std::abs(applied[k] - exact[k]));
                    CHECK(most < (op == hvd::average ? 0.005 : 0.005 * size));
                }
            }
    });
}

TEST_CASE("a run that is resumed on another number of ranks has lost nothing") {
    hvd_test::on_ranks([](communicator& comm) {
        const hvd_test::shared_folder folder(comm);
        auto fewer = comm.split(comm.rank() % 2, comm.rank());  // the even ranks, and the odd ones
        for (const bool grows : {false, true})
            for (const auto& options : variants()) {
                communicator &before = grows ? fewer : comm, &after = grows ? comm : fewer;
                trainer<float> saved(before, options);
                for (int step = 0; step < 10; ++step) saved.step(step);
                const std::string path = folder / (comm.rank() % 2 == 0 ? "even" : "odd");
                hvd::save_checkpoint(grows ? path : folder / "all", saved.optimizer, {});
                comm.barrier();
                trainer<float> resumed(after, options);
                resumed.step(0);  // other residuals, which the file's replace
                hvd::load_checkpoint(folder / (grows ? "even" : "all"), resumed.optimizer);
                // the odd ranks continue the run of the even ones
                for (auto* x : {&saved.applied, &saved.exact, &saved.largest})
                    comm.broadcast(*x, hvd::root{0});
                resumed.applied = saved.applied;
                resumed.exact = saved.exact;
                resumed.largest = saved.largest;
                resumed.steps = saved.steps;
                for (int step = 10; step < 20; ++step) {
                    resumed.step(step);
                    resumed.check();
                }
                comm.barrier();
            }
    });
}

TEST_CASE("the residuals of rows are in checkpoints, and files without residuals have zeros") {
    hvd_test::on_ranks([](communicator& comm) {
        const hvd_test::shared_folder folder(comm);
        auto alone = comm.split(comm.rank(), 0);
        const hvd::optimizer_options options{
            .gradient_predivide_factor = 2,
            .codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)};
        const auto run = [&](communicator& where, const hvd::optimizer_options& o, bool loads,
                             int steps, float value) {
            std::vector<float> table(4), gradient(4);
            hvd::distributed_optimizer distributed(where, optimizers::sgd<float>{1}, o);
            const std::size_t i = distributed.register_sparse("table", table, gradient, 2,
                                                              hvd::sparse_policy::gather);
            if (loads) hvd::load_checkpoint(folder / "c", distributed);
            for (int step = 0; step < steps; ++step) {
                const hvd::sparse_rows<float> rows = {{1}, {value, 0}};
                distributed.gradient_ready(i, rows);
                distributed.step();
            }
            if (!loads) hvd::save_checkpoint(folder / "c", distributed, {});
            comm.barrier();
            return double(table[2]);
        };
        // After 3 steps of 1 + 2^-10, 3 · 2^-10 is pending. More comes with a gradient of 2^-20.
        const float small = 1.0f / 1024, tiny = small * small;
        CHECK(run(comm, options, false, 3, 1 + small) == -3);
        const auto is_near = [](double a, double b) { return std::abs(a - b) < 1e-4; };
        CHECK(is_near(run(comm, options, true, 1, tiny), -3 - 3 * small));
        CHECK(is_near(run(alone, options, true, 1, tiny), -3 - 3 * small));
        CHECK(is_near(run(alone, {}, true, 1, tiny), -3));  // it does not need them
        CHECK(run(comm, {}, false, 3, 1) == -3);
        CHECK(is_near(run(comm, options, true, 1, tiny), -3));
    });
}

TEST_CASE("gradients of 16 bits that travel in another type of 16 bits lose nothing either") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<hvd::bfloat16> w(1), dw(1);
        hvd::distributed_optimizer optimizer(
            comm, hvd::optimizers::float_masters<hvd::bfloat16, hvd::optimizers::sgd<float>>{{1}},
            {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::float16>)});
        optimizer.register_parameter("w", w, dw);
        const auto of = [](int rank) { return hvd::bfloat16(0.11f + 0.003f * float(rank)); };
        double mean = 0, applied = 0;
        for (int r = 0; r < comm.size(); ++r) mean += double(float(of(r))) / comm.size();
        for (int step = 1; step <= 300; ++step) {
            dw[0] = of(comm.rank());
            optimizer.step();
            applied += double(float(dw[0]));
            CHECK(std::abs(applied - step * mean) <= 2 * mean / 256);
        }
    });
}

TEST_CASE("a gradient that is too large for its type leaves no residual without an end") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<hvd::float16> w(1), dw(1);
        hvd::distributed_optimizer optimizer(
            comm, hvd::optimizers::float_masters<hvd::float16, hvd::optimizers::sgd<float>>{{1}},
            {.op = hvd::sum, .codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)});
        optimizer.register_parameter("w", w, dw);
        dw[0] = hvd::float16(40000.0f);  // bfloat16 holds the sum, and float16 that of one rank
        optimizer.step();
        CHECK(std::isinf(float(dw[0])) == (comm.size() > 1));
        for (int step = 0; step < 3; ++step) {
            dw[0] = hvd::float16(0.0f);
            optimizer.step();
            CHECK(std::isfinite(float(dw[0])));
        }
    });
}

}  // namespace feedback_tests
