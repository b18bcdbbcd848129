// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "fixtures.hpp"
#include "hvd_test.hpp"
#include "trainer.hpp"

namespace {

using namespace fashion_mnist;

using numbers = std::vector<double>;

const auto nothing = [](std::size_t, std::size_t) {};

template <class Scalar, class Communicator, class Stored>
numbers parameters_of(const trainer<Scalar, Communicator, Stored>& trainer) {
    numbers all;
    for (const parameter<Scalar>* p : trainer.trained().parameters())
        all.insert(all.end(), p->value.data(), p->value.data() + p->value.size());
    return all;
}

template <class Scalar, class Communicator>
numbers train_on(Communicator& comm, const options& options, const dataset& data) {
    training<Scalar> kept(options);
    trainer<Scalar, Communicator> trainer(comm, options, kept);
    while (trainer.epochs_done() < options.epochs) trainer.train_epoch(data, nothing);
    return parameters_of(trainer);
}

/// Returns the greatest difference, in units of the greatest number.
double distance(const numbers& a, const numbers& b) {
    REQUIRE(a.size() == b.size());
    double difference = 0;
    double greatest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference = std::max(difference, std::abs(a[i] - b[i]));
        greatest = std::max(greatest, std::abs(a[i]));
    }
    return difference / greatest;
}

options with_global_batch(std::size_t batch, const char* model, int epochs) {
    options options;
    options.global_batch = batch;
    options.model = model;
    options.epochs = epochs;
    options.rate = 0.01;
    return options;
}

/// Trains on all ranks together, and on rank 0 alone with the whole batch.
template <class Scalar>
void check_that_splitting_changes_nothing(const options& options, std::size_t images,
                                          double tolerance) {
    const auto data = fixtures::small_dataset(images);
    hvd_test::on_ranks([&](auto& comm) {
        const numbers together = train_on<Scalar>(comm, options, data);

        numbers of_rank_0 = together;
        comm.broadcast(of_rank_0, hvd::root{0});
        CHECK(together == of_rank_0);  // equal to the last bit

        auto chief = comm.subset({0});
        if (!chief) return;
        const numbers alone = train_on<Scalar>(chief, options, data);
        CHECK(distance(together, alone) < tolerance);

        auto untrained = options;
        untrained.epochs = 0;
        CHECK(distance(alone, train_on<Scalar>(chief, untrained, data)) > 1e-3);
    });
}

}  // namespace

TEST_CASE("4 ranks with a quarter of the batch train the mlp as 1 rank with the whole batch") {
    const auto options = with_global_batch(48, "mlp", 2);
    check_that_splitting_changes_nothing<float>(options, 480, 1e-5);
    check_that_splitting_changes_nothing<double>(options, 480, 1e-13);
}

TEST_CASE("4 ranks with a quarter of the batch train the cnn as 1 rank with the whole batch") {
    const auto options = with_global_batch(12, "cnn", 1);
    check_that_splitting_changes_nothing<float>(options, 48, 1e-5);
    check_that_splitting_changes_nothing<double>(options, 24, 1e-13);
}

TEST_CASE("a batch that does not divide by the ranks, and a last one that is short, count fully") {
    // 250 = 5 · 47 + 15, and 47 does not divide by any number of ranks.
    check_that_splitting_changes_nothing<double>(with_global_batch(47, "mlp", 1), 250, 1e-13);
    // The batches are of 3 and one of 1, so with 4 ranks or more some get no sample.
    check_that_splitting_changes_nothing<double>(with_global_batch(3, "mlp", 1), 31, 1e-13);
}

TEST_CASE("parameters of 16 bits with masters train the mlp on any number of ranks as floats do") {
    const auto options = with_global_batch(48, "mlp", 2);
    const auto data = fixtures::small_dataset(480);
    hvd_test::on_ranks([&](auto& comm) {
        using communicator = std::remove_cvref_t<decltype(comm)>;
        training<float, hvd::float16> kept(options);
        trainer<float, communicator, hvd::float16> mixed(comm, options, kept);
        while (mixed.epochs_done() < options.epochs) mixed.train_epoch(data, nothing);
        const numbers together = parameters_of(mixed);
        numbers of_rank_0 = together;
        comm.broadcast(of_rank_0, hvd::root{0});
        CHECK(together == of_rank_0);

        auto chief = comm.subset({0});
        if (chief) CHECK(distance(together, train_on<float>(chief, options, data)) < 1e-2);
        CHECK(mixed.evaluate(data).accuracy() > 0.9);
    });
}

TEST_CASE("a resumed training ends like one that was never interrupted") {
    const fixtures::temporary_directory directory;  // rank 0's directory is used
    for (const std::string model : {"mlp", "cnn"}) {
        CAPTURE(model);
        auto options = with_global_batch(24, model.c_str(), model == "mlp" ? 3 : 2);
        options.seed = 5;
        const auto data = fixtures::small_dataset(model == "mlp" ? 96 : 24);
        hvd_test::on_ranks([&](auto& comm) {
            using communicator = std::remove_cvref_t<decltype(comm)>;
            const numbers uninterrupted = train_on<float>(comm, options, data);
            {
                training<float> kept(options);
                trainer<float, communicator> first(comm, options, kept);
                first.train_epoch(data, nothing);
                first.save(directory / "checkpoint");
            }
            auto other_seed = options;
            other_seed.seed = 6;  // the seed of the checkpoint wins
            training<float> kept(other_seed);
            trainer<float, communicator> second(comm, other_seed, kept);
            second.resume(directory / "checkpoint");
            CHECK(second.epochs_done() == 1);
            while (second.epochs_done() < options.epochs) second.train_epoch(data, nothing);
            CHECK(parameters_of(second) == uninterrupted);
        });
    }
}

TEST_CASE("the test score counts every image once, on any number of ranks") {
    const auto data = fixtures::small_dataset(250);
    const auto options = with_global_batch(10, "mlp", 2);
    hvd_test::on_ranks([&](auto& comm) {
        training<double> of_all(options), of_one(options);
        trainer<double, std::remove_cvref_t<decltype(comm)>> together(comm, options, of_all);
        while (together.epochs_done() < options.epochs) together.train_epoch(data, nothing);
        const score score = together.evaluate(data);
        CHECK(score.samples == 250);
        CHECK(score.accuracy() > 0.9);

        auto alone = comm.split(comm.rank(), 0);
        trainer<double, std::remove_cvref_t<decltype(comm)>> same(alone, options, of_one);
        while (same.epochs_done() < options.epochs) same.train_epoch(data, nothing);
        const auto expected = same.evaluate(data);
        CHECK(score.correct == doctest::Approx(expected.correct));
        CHECK(score.mean_loss() == doctest::Approx(expected.mean_loss()));
    });
}

TEST_CASE("the learning rate grows with the ranks unless it is fixed") {
    options options;
    CHECK(options.scaled_ranks(4) == 4);
    CHECK(options.batch_of(4) == 4 * options.batch);
    options.fixed_rate = true;
    CHECK(options.scaled_ranks(4) == 1);
    options.fixed_rate = false;
    options.global_batch = 128;
    CHECK(options.scaled_ranks(4) == 1);
    CHECK(options.batch_of(4) == 128);
}
