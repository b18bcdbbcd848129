// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <hvd/train.hpp>

#include "model.hpp"

namespace callbacks_tests {

using communicator = hvd_test::communicator;

TEST_CASE("a rate is scaled by the ranks, by their root, or not at all") {
    CHECK(hvd::scale_rate(0.1, {.ranks = 4}) == doctest::Approx(0.4));
    CHECK(hvd::scale_rate(0.1, {.ranks = 4, .rule = hvd::rate_rule::square_root}) ==
          doctest::Approx(0.2));
    CHECK(hvd::scale_rate(0.1, {.ranks = 4, .rule = hvd::rate_rule::adasum}) ==
          doctest::Approx(0.1));
    CHECK(
        hvd::scale_rate(0.1, {.ranks = 8, .rule = hvd::rate_rule::adasum, .local_reduction = 4}) ==
        doctest::Approx(0.4));
    CHECK_THROWS_WITH_AS(hvd::scale_rate(0.1, {}),
                         doctest::Contains(".ranks of at least 1, not 0,"), hvd::usage_error);
    CHECK_THROWS_WITH_AS(hvd::scale_rate(0.1, {.ranks = 4, .local_reduction = -1}),
                         doctest::Contains(".local_reduction of at least 1, not -1"),
                         hvd::usage_error);
}

TEST_CASE("warm-up goes from the rate of one rank to that of all, in a straight line") {
    CHECK(hvd::warmup_factor(0, {.ranks = 4}) == doctest::Approx(0.25));
    CHECK(hvd::warmup_factor(2.5, {.ranks = 4}) == doctest::Approx(0.625));
    CHECK(hvd::warmup_factor(5, {.ranks = 4}) == 1);
    CHECK(hvd::warmup_factor(17, {.ranks = 4}) == 1);
    CHECK(hvd::warmup_factor(0, {.ranks = 4, .epochs = 0}) == 1);
    CHECK(hvd::warmup_factor(0, {.ranks = 1}) == 1);
    CHECK(hvd::warmup_factor(1, {.ranks = 4, .epochs = 2}) == doctest::Approx(0.625));
    const auto refused = [](double epoch, const hvd::warmup_options& options, const char* reason) {
        CHECK_THROWS_WITH_AS(hvd::warmup_factor(epoch, options), doctest::Contains(reason),
                             hvd::usage_error);
    };
    refused(1, {}, ".ranks of at least 1, not 0,");
    refused(1, {.ranks = 4, .epochs = -2}, ".epochs of at least 0, not -2,");
    refused(-1, {.ranks = 4}, "an epoch of at least 0, not -1");
    refused(std::nan(""), {.ranks = 4}, "an epoch of at least 0, not ");
}

TEST_CASE(
    "schedules multiply by a number or a function, in whole epochs or smoothly, between their "
    "ends") {
    const hvd::rate_schedule number{0.1, {.start_epoch = 30, .end_epoch = 60}};
    CHECK(number.factor_at(29.9) == 1);
    CHECK(number.factor_at(30) == 0.1);
    CHECK(number.factor_at(60) == 1);
    CHECK_FALSE(number.applies(60));
    const auto halved = [](double epoch) { return std::pow(0.5, epoch); };
    CHECK(hvd::rate_schedule{halved}.factor_at(1.9) == 0.5);
    CHECK(hvd::rate_schedule{halved, {.staircase = false}}.factor_at(1.5) ==
          doctest::Approx(std::pow(0.5, 1.5)));
}

TEST_CASE("momentum correction scales what was gathered at the old rate") {
    hvd::optimizers::sgd<float> optimizer{.rate = 0.1f, .momentum = 0.9f, .velocity = {{1, 2}, {}}};
    hvd::set_rate_with_momentum_correction(optimizer, optimizer.velocity, 0.05);
    CHECK(optimizer.rate == 0.05f);
    CHECK(optimizer.velocity[0][1] == doctest::Approx(1));
}

TEST_CASE("momentum that was gathered at a rate of 0 stays as it is, and finite") {
    hvd::optimizers::sgd<float> optimizer{.rate = 0, .momentum = 0.9f, .velocity = {{1, -2}}};
    hvd::set_rate_with_momentum_correction(optimizer, optimizer.velocity, 0.05);
    CHECK(optimizer.rate == 0.05f);
    CHECK(optimizer.velocity[0] == std::vector<float>{1, -2});
}

TEST_CASE("metrics are averaged by the number of samples; ranks without any say nothing") {
    hvd_test::on_ranks([](communicator& comm) {
        const double count = comm.rank();  // rank 0 has none
        std::vector<hvd::metric> metrics = {{"loss", count == 0 ? NAN : count}, {"accuracy", 0.5}};
        hvd::average_metrics(comm, metrics, count);
        double total = 0, weighted = 0;
        for (int r = 0; r < comm.size(); ++r) total += r, weighted += double(r) * r;
        if (comm.size() == 1) {
            CHECK(std::isnan(metrics[0].mean));
        } else {
            CHECK(metrics[0].mean == doctest::Approx(weighted / total));
            CHECK(metrics[1].mean == doctest::Approx(0.5));
        }
    });
}

TEST_CASE("metrics of other names are told on every rank, with those of each") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        std::vector<hvd::metric> metrics = {{comm.rank() == 0 ? "loss" : "error", 1}};
        metrics.push_back({"rate", 1});
        CHECK_THROWS_WITH_AS(hvd::average_metrics(comm, metrics, 1),
                             doctest::Contains("\n  rank 0: loss, rate\n  rank 1: error, rate"),
                             hvd::mismatch_error);
    });
}

TEST_CASE("on_root runs on rank 0 alone, and its failure is everybody's") {
    hvd_test::on_ranks([](communicator& comm) {
        int runs = 0;
        hvd::on_root(comm, [&] { ++runs; });
        CHECK(runs == (comm.rank() == 0 ? 1 : 0));
        const auto fails = [&] {
            hvd::on_root(comm, [] { throw std::runtime_error("disk full"); });
        };
        if (comm.rank() == 0) CHECK_THROWS_WITH_AS(fails(), "disk full", std::runtime_error);
        else CHECK_THROWS_WITH_AS(fails(), doctest::Contains("disk full"), hvd::usage_error);
        const auto lines = hvd::on_root(
            comm, [&] { return std::vector<std::string>{"rank " + std::to_string(comm.rank())}; });
        CHECK(lines == std::vector<std::string>{"rank 0"});
    });
}

TEST_CASE("the best so far is told once, and NaN is never it") {
    hvd::best_so_far accuracy(hvd::best_so_far::direction::up),
        loss(hvd::best_so_far::direction::down);
    CHECK(accuracy.improves(0.5));
    CHECK_FALSE(accuracy.improves(0.5));
    CHECK_FALSE(accuracy.improves(NAN));
    CHECK(accuracy.improves(0.6));
    CHECK(loss.improves(3));
    CHECK_FALSE(loss.improves(4));
    CHECK(loss.best() == 3);
}

}  // namespace callbacks_tests
