// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <cmath>
#include <memory_resource>
#include <string>

#include <hvd/train.hpp>

#include "model.hpp"
#include "several_nodes.hpp"

namespace fused_step_tests {

// A plan's run_and_apply against the same plan's run and the optimizer's step on every rank.

using communicator = hvd_test::communicator;
using hvd_test::on_several_nodes;

namespace {

template <class T>
using tensors = std::vector<std::pmr::vector<T>>;

template <class T>
tensors<T> make_tensors(const std::vector<std::size_t>& counts, std::pmr::memory_resource* memory) {
    tensors<T> all;
    for (const std::size_t n : counts) all.emplace_back(n, memory);
    return all;
}

template <class T>
auto views_of(tensors<T>& all) {
    std::vector<hvd::tensor_view<T>> views;
    for (auto& x : all) views.push_back(hvd::view(x.data(), x.size()));
    return views;
}

template <class T>
void set_gradients(tensors<T>& all, int rank, int step) {
    for (std::size_t t = 0; t < all.size(); ++t)
        for (std::size_t i = 0; i < all[t].size(); ++i)
            all[t][i] = T(std::sin(double(i + 31 * t) + rank + 0.3 * step));
}

// Takes four steps both ways from the same beginning.
template <class Optimizer>
void compare(communicator& comm, const std::vector<std::size_t>& counts,
             std::pmr::memory_resource* memory, const Optimizer& optimizer) {
    using T = typename Optimizer::value_type;
    auto gradients = make_tensors<T>(counts, memory), parameters = make_tensors<T>(counts, memory);
    auto own_gradients = make_tensors<T>(counts, std::pmr::new_delete_resource()),
         own = own_gradients;
    for (std::size_t t = 0; t < counts.size(); ++t)
        for (std::size_t i = 0; i < counts[t]; ++i)
            parameters[t][i] = own[t][i] = T(std::cos(double(i * t)));

    const auto gradient_views = views_of(gradients), parameter_views = views_of(parameters);
    const auto own_gradient_views = views_of(own_gradients), own_views = views_of(own);
    auto plan = comm.plan_allreduce(hvd::fuse(gradient_views), hvd::average);
    auto own_plan = comm.plan_allreduce(hvd::fuse(own_gradient_views), hvd::average);
    hvd::fused_step step{hvd::fuse(parameter_views), optimizer};
    Optimizer local = optimizer;
    for (int n = 1; n <= 4; ++n) {
        set_gradients(gradients, comm.rank(), n);
        own_gradients = gradients;
        step.optimizer().rate = local.rate = T(0.1 / n);
        plan.run_and_apply(step);
        own_plan.run();
        local.step(own_views, own_gradient_views);
    }
    double worst = 0;
    for (std::size_t t = 0; t < counts.size(); ++t) {
        for (std::size_t i = 0; i < counts[t]; ++i)
            worst = std::max(worst, std::abs(double(parameters[t][i]) - double(own[t][i])));
        auto of_root = parameters[t];
        comm.broadcast(of_root, hvd::root{0});
        CHECK(std::equal(of_root.begin(), of_root.end(), parameters[t].begin()));
    }
    CHECK(worst <= (sizeof(T) == 4 ? 4e-6 : 1e-13));
}

const std::vector<std::size_t> shapes[] = {{1}, {7, 0, 3}, {5000}, {300, 70001, 1, 64, 2049}};

}  // namespace

TEST_CASE_TEMPLATE("one pass equals the allreduce and the step after it", T, float, double) {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::arena arena{comm, std::size_t(8) << 20};
        for (const auto& counts : shapes)
            for (std::pmr::memory_resource* memory :
                 {std::pmr::new_delete_resource(),
                  static_cast<std::pmr::memory_resource*>(&arena)}) {
                compare(comm, counts, memory, hvd::optimizers::sgd<T>{.momentum = T(0.9)});
                compare(comm, counts, memory, hvd::optimizers::adam<T>{});
                compare(comm, counts, memory,
                        hvd::optimizers::adamw<T>{.rate = T(0.01), .weight_decay = T(0.1)});
            }
    });
}

TEST_CASE_TEMPLATE("one pass equals the allreduce and the step after it on several nodes", T, float,
                   double) {
    on_several_nodes([](communicator& comm) {
        hvd::arena arena{comm, std::size_t(1) << 20};
        for (const std::vector<std::size_t>& counts :
             {std::vector<std::size_t>{1}, {7, 0, 3}, {300, 1, 2049}})
            for (std::pmr::memory_resource* memory :
                 {std::pmr::new_delete_resource(),
                  static_cast<std::pmr::memory_resource*>(&arena)}) {
                compare(comm, counts, memory, hvd::optimizers::sgd<T>{.momentum = T(0.9)});
                compare(comm, counts, memory, hvd::optimizers::adam<T>{});
            }
    });
}

TEST_CASE(
    "the optimizer's state exists once on one node, a slice on each rank, and on several nodes "
    "whole on every rank") {
    const auto check_state = [](communicator& comm) {
        hvd::arena arena{comm, std::size_t(8) << 20};
        for (std::pmr::memory_resource* memory :
             {std::pmr::new_delete_resource(), static_cast<std::pmr::memory_resource*>(&arena)}) {
            std::pmr::vector<float> gradient(100003, memory), parameter(100003, memory);
            auto plan = comm.plan_allreduce(gradient, hvd::sum);
            hvd::fused_step step{hvd::fuse(parameter), hvd::optimizers::adam<float>{}};
            for (int n = 0; n < 2; ++n) plan.run_and_apply(step);
            std::size_t bytes = step.state_bytes();
            comm.allreduce(bytes, hvd::sum);
            const std::size_t copies =
                comm.local_size() < comm.size() ? std::size_t(comm.size()) : 1;
            CHECK(bytes == copies * 2 * 100003 * sizeof(float));
        }
    };
    hvd_test::on_ranks(check_state);
    on_several_nodes(check_state);
}

TEST_CASE(
    "gradients and parameters that do not match are refused on every rank, and the plan still "
    "runs") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> gradient(10, 1.0f), parameter(comm.rank() == 0 ? 9 : 10);
        auto plan = comm.plan_allreduce(gradient, hvd::sum);
        hvd::fused_step step{hvd::fuse(parameter), hvd::optimizers::sgd<float>{.momentum = 0.9f}};
        CHECK_THROWS_AS(plan.run_and_apply(step), hvd::error);
        plan.run();
        CHECK(gradient == std::vector<float>(10, float(comm.size())));
    });
}

TEST_CASE("gradients and parameters of other sizes in a list are refused, and nothing is written") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> g3(3, 1), g5(5, 1), p5(5, 7), p3(3, 7);
        auto plan = comm.plan_allreduce(hvd::fuse(g3, g5), hvd::sum);
        hvd::fused_step step{hvd::fuse(p5, p3), hvd::optimizers::sgd<float>{.momentum = 0.9f}};
        CHECK_THROWS_AS(plan.run_and_apply(step), hvd::usage_error);
        CHECK(p5 == std::vector<float>(5, 7));
        CHECK(p3 == std::vector<float>(3, 7));
        plan.run();
        CHECK(g5 == std::vector<float>(5, float(comm.size())));
    });
}

TEST_CASE("a step that the ranks could not agree on does not count") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> gradient(3, 1.0f), parameter(3, 1.0f);
        auto plan = comm.plan_allreduce(gradient, hvd::average);
        hvd::fused_step step{hvd::fuse(parameter), hvd::optimizers::adam<float>{.rate = 0.1f}};
        const bool disagree = comm.size() > 1;
        if (disagree) {
            const auto step_or = [&] {
                if (comm.rank() == 0) plan.run_and_apply(step);
                else comm.barrier();
            };
            CHECK_THROWS_AS(step_or(), hvd::mismatch_error);
            step.optimizer().rate = comm.rank() == 0 ? 0.1f : 0.2f;
            CHECK_THROWS_AS(plan.run_and_apply(step), hvd::mismatch_error);
            hvd::fused_step other{hvd::fuse(parameter),
                                  hvd::optimizers::sgd<float>{.rate = 0.1f, .momentum = 0.9f}};
            const auto other_rule = [&] {
                comm.rank() == 0 ? plan.run_and_apply(step) : plan.run_and_apply(other);
            };
            CHECK_THROWS_AS(other_rule(), hvd::mismatch_error);
            step.optimizer().rate = 0.1f;
        }
        CHECK(step.steps() == 0);
        plan.run_and_apply(step);
        CHECK(step.steps() == 1);
        for (const float p : parameter)
            CHECK(p == doctest::Approx(0.9f));  // Adam's first step is the rate
    });
}

TEST_CASE("ranks disagree if some run the plan and some apply a step") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        std::vector<float> gradient(10, 1.0f), parameter(10);
        auto plan = comm.plan_allreduce(gradient, hvd::sum);
        hvd::fused_step step{hvd::fuse(parameter), hvd::optimizers::sgd<float>{.momentum = 0.9f}};
        if (comm.rank() == 0) CHECK_THROWS_AS(plan.run_and_apply(step), hvd::mismatch_error);
        else CHECK_THROWS_AS(plan.run(), hvd::mismatch_error);
    });
}

namespace {

// The same steps by an allreduce and the optimizer on every rank.
template <class Optimizer>
struct reference {
    using T = typename Optimizer::value_type;
    tensors<T> gradients, parameters;
    Optimizer optimizer;

    void step(communicator& comm, int n) {
        set_gradients(gradients, comm.rank(), n);
        comm.allreduce(hvd::fuse(gradients), hvd::average);
        optimizer.step(views_of(parameters), views_of(gradients));
    }
    double distance(const tensors<T>& others) const {
        double worst = 0;
        for (std::size_t t = 0; t < others.size(); ++t)
            for (std::size_t i = 0; i < others[t].size(); ++i)
                worst = std::max(worst, std::abs(double(parameters[t][i]) - double(others[t][i])));
        return worst;
    }
};

// Steps by turns with plans of gradients in plain memory, in an arena, and in both.
template <class Optimizer>
void step_by_turns(communicator& comm, const Optimizer& optimizer,
                   const std::vector<std::size_t>& counts) {
    using T = typename Optimizer::value_type;
    hvd::arena arena{comm, std::size_t(4) << 20};
    auto* const plain = std::pmr::new_delete_resource();
    auto here = make_tensors<T>(counts, plain), there = make_tensors<T>(counts, &arena);
    auto parameters = make_tensors<T>(counts, &arena);
    reference<Optimizer> expected{here, make_tensors<T>(counts, plain), optimizer};
    const auto here_views = views_of(here), there_views = views_of(there),
               parameter_views = views_of(parameters);
    hvd::fused_step step{hvd::fuse(parameter_views), optimizer};
    auto of_plain = comm.plan_allreduce(hvd::fuse(here_views), hvd::average);
    auto of_arena = comm.plan_allreduce(hvd::fuse(there_views), hvd::average);
    for (int n = 1; n <= 5; ++n) {
        expected.step(comm, n);
        set_gradients(here, comm.rank(), n);
        set_gradients(there, comm.rank(), n);
        if (n == 5) of_plain = comm.plan_allreduce(hvd::fuse(here_views), hvd::average);
        (n % 4 < 2 ? of_plain : of_arena).run_and_apply(step);
        CHECK(expected.distance(parameters) <= (sizeof(T) == 4 ? 2e-5 : 1e-12));
    }
}

}  // namespace

TEST_CASE("a step goes on with other plans of the same gradients") {
    hvd_test::on_ranks([](communicator& comm) {
        step_by_turns(comm, hvd::optimizers::sgd<float>{.momentum = 0.9f},
                      {300, 70001, 0, 64, 2049});
        step_by_turns(comm, hvd::optimizers::adam<double>{.rate = 0.01}, {40000, 3});
    });
    on_several_nodes([](communicator& comm) {
        step_by_turns(comm, hvd::optimizers::sgd<float>{.momentum = 0.9f}, {300, 2049});
    });
}

TEST_CASE("a step goes on with the plan of a communicator whose ranks come in another order") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const std::vector<std::size_t> counts = {5000, 3};
        auto gradients = make_tensors<float>(counts, std::pmr::new_delete_resource());
        auto parameters = gradients;
        using momentum = hvd::optimizers::sgd<float>;
        reference<momentum> expected{gradients, gradients, {.momentum = 0.9f}};
        const auto gradient_views = views_of(gradients), parameter_views = views_of(parameters);
        hvd::fused_step step{hvd::fuse(parameter_views), momentum{.momentum = 0.9f}};
        for (int n = 1; n <= 4; ++n) {
            expected.step(comm, n);
            set_gradients(gradients, comm.rank(), n);
            communicator other = comm.split(0, n % 2 == 0 ? -comm.rank() : comm.rank());
            auto plan = other.plan_allreduce(hvd::fuse(gradient_views), hvd::average);
            plan.run_and_apply(step);
            CHECK(expected.distance(parameters) <= 2e-5);
        }
    });
}

TEST_CASE("a step refuses a plan whose ranks have not all of its state") {
    hvd_test::on_ranks_from(3, [](communicator& comm) {
        std::vector<float> gradient(5000, 1), parameter(5000);
        hvd::fused_step step{hvd::fuse(parameter), hvd::optimizers::sgd<float>{.momentum = 0.9f}};
        auto plan = comm.plan_allreduce(gradient, hvd::average);
        plan.run_and_apply(step);
        const auto before = parameter;
        // Each node has the whole state, a part of it on each of its ranks.
        const auto has_next = comm.allgather(int(comm.local_rank() + 1 < comm.local_size()));
        std::vector<int> all_but_last;
        for (int rank = 0; rank < comm.size(); ++rank)
            if (has_next.values[std::size_t(rank)] != 0) all_but_last.push_back(rank);
        if (all_but_last.empty()) return;
        communicator some = comm.subset(all_but_last);
        if (some) {
            auto smaller = some.plan_allreduce(gradient, hvd::average);
            CHECK_THROWS_WITH_AS(smaller.run_and_apply(step), doctest::Contains("elements of 5000"),
                                 hvd::usage_error);
            CHECK(parameter == before);
        }
        comm.barrier();
        plan.run_and_apply(step);
        CHECK(parameter[4999] == doctest::Approx(before[4999] * 2.9));
    });
}

TEST_CASE("ranks whose steps have not begun together disagree on their number") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        std::vector<float> gradient(50, 1), parameter(50);
        hvd::fused_step step{hvd::fuse(parameter), hvd::optimizers::sgd<float>{.momentum = 0.9f}};
        communicator alone = comm.subset({0});
        if (alone) alone.plan_allreduce(gradient, hvd::average).run_and_apply(step);
        auto plan = comm.plan_allreduce(gradient, hvd::average);
        CHECK_THROWS_WITH_AS(
            plan.run_and_apply(step),
            doctest::Contains("ranks disagree on steps:\n  rank 0: 1\n  rank 1: 0"),
            hvd::mismatch_error);
    });
}

TEST_CASE("a plan that is no sum or mean is refused, and nothing is written") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> gradient(10, 1), parameter(10, 7);
        hvd::fused_step step{hvd::fuse(parameter), hvd::optimizers::sgd<float>{.momentum = 0.9f}};
        const auto refused = [&](auto op, const char* name) {
            auto plan = comm.plan_allreduce(gradient, op);
            CHECK_THROWS_WITH_AS(plan.run_and_apply(step), doctest::Contains(name),
                                 hvd::usage_error);
        };
        refused(hvd::max, "by max");
        refused(hvd::min, "by min");
        refused(hvd::product, "by product");
        refused(hvd::custom([](float a, float b) { return a + b; }, hvd::commutative), "by ");
        CHECK(parameter == std::vector<float>(10, 7));
        CHECK(step.steps() == 0);
    });
}

TEST_CASE("ranks whose steps differ are told which number does") {
    const auto told = [](communicator& comm) {
        std::vector<float> gradient(3, 1.0f), parameter(3, 1.0f);
        auto plan = comm.plan_allreduce(gradient, hvd::average);
        hvd::fused_step adam{hvd::fuse(parameter), hvd::optimizers::adam<float>{.rate = 0.25f}};
        hvd::fused_step other{hvd::fuse(parameter),
                              hvd::optimizers::sgd<float>{.rate = 0.25f, .momentum = 0.9f}};
        const bool first = comm.rank() == 0;
        const auto field_of = [&](auto run, const char* value) -> std::string {
            try {
                run();
            } catch (const hvd::mismatch_error& e) {
                CHECK(e.table()[0].second == value);
                return std::string(e.field());
            }
            return "none";
        };
        const auto run = [&] { plan.run_and_apply(adam); };
        run();
        adam.optimizer().rate = first ? 0.5f : 0.25f;
        CHECK(field_of(run, "0.5") == "rate");
        adam.optimizer().rate = 0.25f;
        adam.optimizer().beta2 = first ? 0.75f : 0.5f;
        CHECK(field_of(run, "0.75") == "beta2");
        adam.optimizer().beta2 = 0.75f;
        run();
        other.optimizer().nesterov = first;
        CHECK(field_of([&] { plan.run_and_apply(other); }, "1") == "nesterov");
        other.optimizer().nesterov = false;
        plan.run_and_apply(other);
        CHECK(field_of([&] { first ? plan.run_and_apply(adam) : plan.run_and_apply(other); },
                       "adam") == "optimizer");
        CHECK(field_of([&] { first ? plan.run_and_apply(other) : plan.run(); }, "run_and_apply") ==
              "call");
        run();
    };
    hvd_test::on_ranks_from(2, told);
    on_several_nodes(told);
}

}  // namespace fused_step_tests
