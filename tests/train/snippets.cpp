// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The programs of docs/training.md and of the reference of train/, between `//! [name]` and the
// same again.

#include <hvd/train.hpp>

#include "hvd_test.hpp"

using communicator = hvd_test::communicator;

namespace {

// The loss (w - target)², whose target is another on each rank.
struct network {
    std::vector<float> weight = {4, 4}, gradient = {0, 0};
    void backward(float target) {
        for (std::size_t k = 0; k < weight.size(); ++k) gradient[k] += 2 * (weight[k] - target);
    }
};

//! [single]
void train_alone(network& model, float target) {
    hvd::optimizers::sgd<float> optimizer{.rate = 0.25f};
    const hvd::tensor_view<float> parameters[] = {
        hvd::view(model.weight.data(), model.weight.size())};
    const hvd::tensor_view<float> gradients[] = {
        hvd::view(model.gradient.data(), model.gradient.size())};
    for (int step = 0; step < 50; ++step) {
        model.gradient.assign(model.gradient.size(), 0);
        model.backward(target);
        optimizer.step(parameters, gradients);
    }
}
//! [single]

//! [distributed_optimizer]
void train_together(communicator& world, network& model, float target) {
    hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.25f});
    optimizer.register_parameter("weight", model.weight, model.gradient);
    hvd::broadcast_parameters(optimizer);  // all ranks begin with those of rank 0
    for (int step = 0; step < 50; ++step) {
        optimizer.zero_gradients();
        model.backward(target);
        optimizer.step();  // averages the gradients, then steps
    }
}
//! [distributed_optimizer]

//! [overlap]
void train_with_overlap(communicator& world, network& model, float target) {
    hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.25f});
    const std::size_t weight = optimizer.register_parameter("weight", model.weight, model.gradient);
    for (int step = 0; step < 50; ++step) {
        optimizer.zero_gradients();
        model.backward(target);
        optimizer.gradient_ready(weight);  // from inside the backward pass, as soon as it is true
        auto gradients = optimizer.synchronize();
        hvd::clip_by_norm(gradients, 10.0);
        optimizer.apply(std::move(gradients));
    }
}
//! [overlap]

float mean_target(const communicator& world) { return float(world.size() - 1) / 2; }

}  // namespace

TEST_CASE("single-rank snippet") {
    network model;
    train_alone(model, 3);
    CHECK(model.weight[1] == doctest::Approx(3));
}

TEST_CASE("distributed_optimizer snippet") {
    hvd_test::on_ranks([](communicator& world) {
        network model, overlapped;
        if (world.rank() != 0) model.weight = {7, 7};
        train_together(world, model, float(world.rank()));
        CHECK(model.weight[1] == doctest::Approx(mean_target(world)));
        train_with_overlap(world, overlapped, float(world.rank()));
        CHECK(overlapped.weight[0] == doctest::Approx(mean_target(world)));
    });
}

TEST_CASE("distributed_gradients snippet") {
    hvd_test::on_ranks([](communicator& world) {
        network model;
        model.backward(float(world.rank()));
        //! [distributed_gradients]
        std::vector<hvd::tensor_view<float>> gradients = {
            hvd::view(model.gradient.data(), model.gradient.size())};
        hvd::distributed_gradients(world, gradients);  // now the means over the ranks
        //! [distributed_gradients]
        CHECK(model.gradient[0] == doctest::Approx(2 * (4 - mean_target(world))));
    });
}

TEST_CASE("broadcast_state snippet") {
    hvd_test::on_ranks([](communicator& world) {
        network model;
        hvd::distributed_optimizer optimizer(
            world, hvd::optimizers::momentum<float>{.rate = float(world.rank() + 1)});
        optimizer.register_parameter("weight", model.weight, model.gradient);
        if (world.rank() == 0) model.weight = {1, 2};
        //! [broadcast_state]
        hvd::broadcast_parameters(optimizer);
        hvd::broadcast_optimizer_state(optimizer);
        //! [broadcast_state]
        CHECK(model.weight == std::vector<float>{1, 2});
        CHECK(optimizer.optimizer().rate == 1);
    });
}
