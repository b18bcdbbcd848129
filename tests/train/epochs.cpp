// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Ranks that are in different epochs in one step.

#include <hvd/train.hpp>

#include "model.hpp"

namespace epochs_tests {

using communicator = hvd_test::communicator;
namespace optimizers = hvd::optimizers;
using doctest::Contains;

namespace {

std::vector<hvd::optimizer_options> kinds_of_step() {
    return {{},
            {.bucket_bytes = 1},
            {.codec = hvd::codec::cast<hvd::bfloat16>},
            {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)},
            {.op = hvd::adasum},
            {.skip_nonfinite = true}};
}

struct two_parameters {
    std::vector<float> a = {1, 2}, b = {3}, da = {1, 1}, db = {1};

    template <class Optimizer>
    void register_with(Optimizer& optimizer) {
        optimizer.register_parameter("a", a, da);
        optimizer.register_parameter("b", b, db);
    }
};

}  // namespace

TEST_CASE("ranks in different epochs are told so in the first such step, with the epochs") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const auto& options : kinds_of_step())
            for (const bool reports : {false, true}) {
                hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{1}, options);
                two_parameters model;
                model.register_with(optimizer);
                const auto step = [&] {
                    if (reports) {
                        optimizer.gradient_ready(1);
                        optimizer.gradient_ready(0);
                    }
                    optimizer.step();
                };
                optimizer.begin_epoch(7);
                step();
                step();
                const bool ahead = comm.rank() == comm.size() - 1;
                if (ahead) optimizer.begin_epoch(8);
                const auto before = model.a;
                try {
                    step();
                    FAIL("a step with ranks in different epochs");
                } catch (const hvd::mismatch_error& e) {
                    CHECK(e.field() == "name");
                    const std::string what = e.what();
                    CHECK(what.find("epoch 7") != std::string::npos);
                    CHECK(what.find("epoch 8") != std::string::npos);
                }
                CHECK(model.a == before);
                optimizer.begin_epoch(8);
                optimizer.zero_gradients();
                model.da = {1, 1};
                step();
                CHECK(model.a[0] == before[0] - 1);
            }
    });
}

TEST_CASE("ranks in different epochs are told so where all gradients come in rows") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{1});
        std::vector<float> table(6), gradient(6);
        optimizer.register_sparse("words", table, gradient, 2);
        const hvd::sparse_rows<float> rows = {{comm.rank() % 3}, {1, 1}};
        optimizer.begin_epoch(0);
        optimizer.gradient_ready(0, rows);
        optimizer.step();
        optimizer.begin_epoch(comm.rank() == 0 ? 0 : 1);
        optimizer.gradient_ready(0, rows);
        CHECK_THROWS_WITH_AS(optimizer.step(), Contains("rank 0: epoch 0\n  rank 1: epoch 1"),
                             hvd::mismatch_error);
    });
}

TEST_CASE("a rank that says no epoch, or another one before the first step, is told") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const int quiet : {0, comm.size() - 1}) {
            hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{1});
            two_parameters model;
            model.register_with(optimizer);
            if (comm.rank() != quiet) optimizer.begin_epoch(3);
            CHECK_THROWS_WITH_AS(optimizer.step(), Contains("epoch 3"), hvd::mismatch_error);
        }
        hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{1});
        two_parameters model;
        model.register_with(optimizer);
        optimizer.begin_epoch(std::uint64_t(comm.rank()));
        CHECK_THROWS_WITH_AS(optimizer.step(), Contains("rank 1: 'epoch 1: gradients'"),
                             hvd::mismatch_error);
    });
}

TEST_CASE("epochs that are equal change nothing, also after a freeze") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{1});
        two_parameters model;
        model.register_with(optimizer);
        for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
            optimizer.begin_epoch(epoch);
            if (epoch == 2) optimizer.freeze(1);
            for (int i = 0; i < 2; ++i) optimizer.step();
        }
        CHECK(model.a[0] == 1 - 8);
        CHECK(model.b[0] == 3 - 4);
        optimizer.gradient_ready(0);
        CHECK_THROWS_WITH_AS(optimizer.begin_epoch(5), Contains("epoch 5 begins between steps"),
                             hvd::usage_error);
        auto gradients = optimizer.synchronize();
        CHECK_THROWS_AS(optimizer.begin_epoch(5), hvd::usage_error);
        optimizer.apply(std::move(gradients));
        optimizer.begin_epoch(5);
        optimizer.step();
        CHECK(model.a[0] == 1 - 10);
    });
}

TEST_CASE("samples that are kept end an epoch early on some ranks, and the next step says so") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{1});
        two_parameters model;
        model.register_with(optimizer);
        const auto steps = [&](hvd::uneven_samples uneven) {
            hvd::sharded_sampler sampler(std::size_t(20 * comm.size() + 1), comm,
                                         {.uneven = uneven});
            std::uint64_t done = 0;
            for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
                sampler.begin_epoch({.epoch = epoch});
                optimizer.begin_epoch(epoch);
                for (std::size_t at = 0; at < sampler.size(); at += 10, ++done) optimizer.step();
            }
            return done;
        };
        CHECK(steps(hvd::uneven_samples::repeat) == 9);
        CHECK(steps(hvd::uneven_samples::drop) == 6);
        CHECK_THROWS_WITH_AS(steps(hvd::uneven_samples::keep),
                             Contains("rank 0: 'epoch 0: gradients', rank 1: 'epoch 1: gradients'"),
                             hvd::mismatch_error);
    });
}

TEST_CASE("the runs of a plan belong to an epoch, too") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> gradient(40, 1), weight(40, 0);
        auto plan = comm.plan_allreduce(gradient, hvd::average, {.name = "mine"});
        hvd::fused_step step{hvd::fuse(weight),
                             optimizers::sgd<float>{.rate = 1, .momentum = 0.9f}};
        plan.begin_epoch(0);
        plan.run();
        plan.begin_epoch(1);
        plan.run_async().wait();
        plan.run_and_apply(step);
        CHECK(weight[39] == -1);
        if (comm.size() == 1) return;
        plan.begin_epoch(comm.rank() == 0 ? 2 : 11);
        const auto differs = Contains("rank 0: 'epoch 2: mine', rank 1: 'epoch 11: mine'");
        CHECK_THROWS_WITH_AS(plan.run(), differs, hvd::mismatch_error);
        CHECK_THROWS_WITH_AS(plan.run_async().wait(), differs, hvd::mismatch_error);
        CHECK_THROWS_WITH_AS(plan.run_and_apply(step), differs, hvd::mismatch_error);
        plan.begin_epoch(12);
        plan.run_and_apply(step);
        CHECK(weight[39] < -1);
    });
}

}  // namespace epochs_tests
