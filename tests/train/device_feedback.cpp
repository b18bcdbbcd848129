// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Tests of error feedback on the device: gradients differ between ranks, and what was applied stays
// within one rounding of the exact sum at any step.

#include <algorithm>
#include <hvd/checkpoint.hpp>
#include <limits>

#include "device_model.hpp"
#include "temporary_directory.hpp"

namespace device_feedback_tests {

using namespace device_test;
using hvd::gradient_codec;
using hvd::gradient_op;
namespace optimizers = hvd::optimizers;

namespace {

using floats = std::vector<float>;

constexpr std::size_t sizes[] = {1, 7, 0, 2100};
constexpr std::size_t all_elements = 2108;

// The gradient of one rank's pass.
float element(int step, int pass, int rank, std::size_t k) {
    const auto n = (k * 37 + std::size_t(step * 11 + pass * 5 + rank * 3)) % 101;
    return k % 3 == 0 ? 1 + 0.001f * float(rank) + 0.0001f * float(n) : float(n) / 50 - 1;
}

// Tensors whose gradients differ between ranks, and the sums of what was applied and of what should
// have been.
template <class Comm>
struct trainer {
    std::vector<std::unique_ptr<tensor<float>>> values, gradients;
    std::vector<double> applied = std::vector<double>(all_elements), exact = applied,
                        largest = applied;
    int steps = 0;
    hvd::optimizer_options options;
    hvd::distributed_optimizer<Comm, optimizers::sgd<float>, float> optimizer;
    const stream& s;

    trainer(Comm& gpus, const stream& of_steps, const hvd::optimizer_options& o)
        : options(o), optimizer(gpus, optimizers::sgd<float>{1}, o), s(of_steps) {
        for (const std::size_t n : sizes) {
            values.push_back(std::make_unique<tensor<float>>(floats(n)));
            gradients.push_back(std::make_unique<tensor<float>>(floats(n)));
        }
        for (std::size_t i = 0; i < std::size(sizes); ++i)
            optimizer.register_parameter("p" + std::to_string(i), values[i]->view(),
                                         gradients[i]->view());
    }

    void backward(int step, float more = 0, std::size_t unreported = 0) {
        optimizer.zero_gradients(s);
        for (int pass = 0; pass < options.backward_passes_per_step; ++pass)
            for (std::size_t i = std::size(sizes), last = all_elements; i-- > 0;) {
                floats g(sizes[i]);
                last -= sizes[i];
                for (std::size_t k = 0; k < sizes[i]; ++k)
                    g[k] = element(step, pass, optimizer.comm().rank(), last + k) + more;
                s.add(*gradients[i], g);
                if (i >= unreported) optimizer.gradient_ready(i, s);
            }
    }

    // Adds the gradients of a step that was made.
    void count(int step) {
        ++steps;
        const int ranks = optimizer.comm().size(), passes = options.backward_passes_per_step;
        std::size_t k = 0;
        for (const auto& g : gradients)
            for (const float x : s.values(*g)) applied[k++] += double(x);
        for (k = 0; k < all_elements; ++k) {
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
        optimizer.step(s);
        count(n);
    }

    // The sums of the ranks are in float, whose last bits may differ in every step.
    void check() const {
        const double relative = options.codec.travels_as<hvd::float16>() ? 2048 : 256;
        double most = 0;
        for (std::size_t k = 0; k < all_elements; ++k)
            most = std::max(most, std::abs(applied[k] - exact[k]) /
                                      (1.01 * largest[k] / relative + 3e-8 + 2e-7 * steps));
        CHECK(most <= 1);
    }
};

template <class Comm>
trainer(Comm&, const stream&, const hvd::optimizer_options&) -> trainer<Comm>;

std::vector<hvd::optimizer_options> variants() {
    std::vector<hvd::optimizer_options> all = {
        {.op = hvd::sum, .bucket_bytes = 1, .codec = hvd::codec::cast<hvd::float16>},
        {.groups = {{0, 3}},
         .backward_passes_per_step = 2,
         .average_passes = true,
         .gradient_predivide_factor = 3,
         .codec = hvd::codec::cast<hvd::bfloat16>,
         .skip_nonfinite = true}};
    for (auto& o : all) o.codec = hvd::codec::error_feedback(o.codec);
    return all;
}

}  // namespace

TEST_CASE("at any step what was applied is within one rounding of the exact sum") {
    train_on_every_backend([](auto&, auto& gpus) {
        for (const auto& options : variants()) {
            const stream s;
            trainer t(gpus, s, options);
            for (int step = 0; step < 12; ++step) {
                t.step(step);
                t.check();
            }
        }
    });
}

TEST_CASE("steps that are skipped, dropped or abandoned, and frozen parameters keep residuals") {
    train_on_every_backend([](auto&, auto& gpus) {
        // NCCL compares no reductions: an abandoned one gives the communicator up.
        const bool can_abandon = hvd::detail::device_access::session_of(gpus)->compares(
            hvd::detail::collective::reduce_scatter);
        for (const auto& options : variants()) {
            const stream s;
            trainer t(gpus, s, options);
            for (int step = 0; step < 14; ++step) {
                if (step % 3 == 1) {
                    t.backward(step);
                    (void)t.optimizer.synchronize(s);
                } else if (step == 6 && options.skip_nonfinite) {
                    const bool infinite = gpus.rank() == gpus.size() - 1;
                    t.backward(step, infinite ? std::numeric_limits<float>::infinity() : 0);
                    t.optimizer.step(s);
                    CHECK(t.optimizer.skipped_steps(s) == 1);
                } else if (step == 9 && !options.skip_nonfinite && can_abandon) {
                    t.backward(step, 0, 1);
                    t.optimizer.abandon();
                } else {
                    if (step % 4 == 0) t.optimizer.freeze(2);
                    if (step % 4 == 2) t.optimizer.unfreeze(2);
                    t.step(step);
                    t.check();
                }
            }
        }
    });
}

TEST_CASE("a step that one rank abandons fails on the others, and consumes no residual") {
    const auto abandons = [](auto&, auto& gpus) {
        for (const auto& options : variants())
            for (const int reported : {0, 1, 4}) {
                if (reported == 4 && !options.skip_nonfinite) continue;  // the peers' step succeeds
                const stream s;
                trainer t(gpus, s, options);
                for (int step = 0; step < 8; ++step) {
                    if (step % 3 != 2) {
                        t.step(step);
                        t.check();
                        continue;
                    }
                    t.optimizer.zero_gradients(s);
                    const bool gives_up = gpus.rank() == 1;
                    const auto reports = [&] {
                        for (int pass = 0; pass < options.backward_passes_per_step; ++pass)
                            for (int i = 3; i > 3 - (gives_up ? reported : 4); --i)
                                t.optimizer.gradient_ready(std::size_t(i), s);
                    };
                    if (gives_up) {
                        reports();
                        t.optimizer.abandon("no memory");
                    } else {
                        CHECK_THROWS_AS((reports(), t.optimizer.step(s)), hvd::peer_error);
                    }
                }
            }
    };
    for (int ranks = 2; ranks <= 4; ++ranks) train_on<hvd::staged<host>>(ranks, ranks, abandons);
}

TEST_CASE(
    "rows that differ between ranks are rounded with feedback; a skipped step consumes none") {
    train_on_every_backend([](auto&, auto& gpus) {
        for (const auto policy : {hvd::sparse_policy::gather, hvd::sparse_policy::dense}) {
            const stream s;
            const tensor<float> table(floats(4)), gradient(floats(4)), row(floats(2));
            const tensor<std::int64_t> index(std::vector<std::int64_t>{1});
            hvd::distributed_optimizer optimizer(
                gpus, optimizers::sgd<float>{1},
                {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>),
                 .skip_nonfinite = true});
            const auto i =
                optimizer.register_sparse("table", table.view(), gradient.view(), 2, policy);
            const float mine = 1 + 0.001f * float(gpus.rank());
            for (int step = 0; step < 40; ++step) {
                const bool infinite = step % 2 != 0 && gpus.rank() == 0;
                s.write(row, floats{mine, infinite ? std::numeric_limits<float>::infinity() : 0});
                const hvd::sparse_view<float, hvd::device> rows{index.view(), row.view()};
                optimizer.gradient_ready(i, rows, s);
                optimizer.step(s);
            }
            const double mean = 1 + 0.0005 * (gpus.size() - 1);
            CHECK(std::abs(s.values(table)[2] + 20 * mean) < 0.004);
        }
    });
}

TEST_CASE("a checkpoint on the device has the residuals, for any number of ranks") {
    const hvd_test::temporary_directory folder;
    const std::string path = (folder / "c").string();
    for (const auto& options : variants()) {
        std::vector<double> applied, exact, largest;
        train_on<hvd::nccl>(3, 3, [&](auto&, auto& gpus) {
            const stream s;
            trainer t(gpus, s, options);
            for (int step = 0; step < 5; ++step) t.step(step);
            hvd::save_checkpoint(path, t.optimizer, {.step = 5});
            if (gpus.rank() == 0) applied = t.applied, exact = t.exact, largest = t.largest;
        });
        train_on<hvd::staged<host>>(2, 2, [&](auto&, auto& gpus) {
            const stream s;
            trainer t(gpus, s, options);
            t.step(0);  // other residuals, which the file's replace
            hvd::load_checkpoint(path, t.optimizer);
            t.applied = applied, t.exact = exact, t.largest = largest;
            for (int step = 5; step < 12; ++step) {
                t.step(step);
                t.check();
            }
        });
    }
}

TEST_CASE(
    "a step with error feedback is captured, and each launch of the graph has its residuals") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        train_on<hvd::nccl>(ranks, ranks, [](auto& world, auto& gpus) {
            const stream s;
            trainer t(gpus, s, variants()[1]);
            const auto step = [&] {
                for (int pass = 0; pass < 2; ++pass)
                    for (std::size_t i = std::size(sizes); i-- > 0;)
                        t.optimizer.gradient_ready(i, s);
                t.optimizer.step(s);
            };
            const auto write = [&](int n) {
                std::size_t k = 0;
                for (const auto& g : t.gradients) {
                    floats x(g->view().size());
                    for (float& e : x) {
                        e = element(n, 0, gpus.rank(), k) + element(n, 1, gpus.rank(), k);
                        ++k;
                    }
                    s.write(*g, x);
                }
            };
            write(0);
            step();
            t.count(0);
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t executable = nullptr;
            cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
            step();
            CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
            cudaGraphInstantiate(&executable, graph, 0);
            for (int n = 1; n < 9; ++n) {
                write(n);
                cudaGraphLaunch(executable, s);
                t.count(n);
                t.check();
            }
            world.barrier();
            cudaGraphExecDestroy(executable);
            cudaGraphDestroy(graph);
        });
}

}  // namespace device_feedback_tests
