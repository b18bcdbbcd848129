// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The programs of the pages about training on an engine, each between two lines `//! [name]`.

#include <hvd/train_engine.hpp>

#include <string>
#include <thread>

#include "hvd_test.hpp"

namespace engine_snippets_tests {

using communicator = hvd_test::communicator;

namespace {

//! [engine_optimizer]
// A model whose graph changes: a step uses some of its layers, in the order of the data.
struct layer {
    std::string name;
    std::vector<float> weight = std::vector<float>(8, 1), gradient = std::vector<float>(8);
    void backward(float x) {
        for (float& g : gradient) g += x;
    }
};

struct model {
    std::vector<layer> layers = {{"embed"}, {"left"}, {"right"}, {"head"}};
    // The layers of this rank's batch, from the last to the first.
    std::vector<std::size_t> route(int step, int rank) const {
        if ((step + rank) % 3 == 0) return {3, 0};
        if ((step + rank) % 3 == 1) return {3, 1, 2, 0};
        return {3, 2, 1, 0};
    }
};

void train(communicator& world, model& net) {
    hvd::engine engine{world};
    hvd::distributed_optimizer optimizer(engine, hvd::optimizers::adam<float>{.rate = 0.01f});
    for (layer& l : net.layers) optimizer.register_parameter(l.name, l.weight, l.gradient);
    hvd::broadcast_parameters(optimizer);
    for (int step = 0; step < 20; ++step) {
        optimizer.zero_gradients();
        for (const std::size_t i : net.route(step, world.rank())) {  // each rank has its own graph
            net.layers[i].backward(float(i) + 1);
            optimizer.gradient_ready(i);  // it is on its way, under the name of its parameter
        }
        optimizer.nothing_ready();  // zeros for the layers that this batch has not used
        optimizer.step();
    }
}
//! [engine_optimizer]

//! [engine_threads]
// One thread for each half of the layers computes and reports their gradients.
template <class Optimizer>
void backward_in_threads(Optimizer& optimizer, model& net) {
    const auto half = [&](std::size_t first, std::size_t last) {
        for (std::size_t i = last; i-- > first;) {
            net.layers[i].backward(1);
            optimizer.gradient_ready(i);
        }
    };
    std::thread upper(half, 2, 4);
    half(0, 2);
    upper.join();  // all reports come before the step
    optimizer.step();
}
//! [engine_threads]

//! [engine_uneven]
// Ranks have different numbers of batches. Those that have no more take part without a gradient.
template <class Engine, class Optimizer>
void epoch(Engine& engine, Optimizer& optimizer, model& net, int batches) {
    for (int batch = 0; batch < batches; ++batch) {
        optimizer.zero_gradients();
        backward_in_threads(optimizer, net);
    }
    const int last = engine.join().wait();  // this rank had the most steps
    hvd::broadcast_parameters(optimizer, hvd::root{last});
    hvd::broadcast_optimizer_state(optimizer, hvd::root{last});
}
//! [engine_uneven]

void named_gradients(communicator& world) {
    model net;
    for (layer& l : net.layers) l.backward(float(world.rank()));
    //! [named_gradients]
    hvd::engine engine{world};
    std::vector<std::string> names;
    std::vector<hvd::tensor_view<float>> gradients;
    for (const std::size_t i : net.route(1, world.rank())) {  // in this rank's order
        names.push_back(net.layers[i].name);
        gradients.push_back(hvd::view(net.layers[i].gradient.data(), 8));
    }
    if (gradients.size() == 2) {  // the others have all four
        for (const std::size_t i : {1, 2}) {
            names.push_back(net.layers[i].name);
            gradients.push_back(hvd::view(net.layers[i].gradient.data(), 8));
        }
    }
    hvd::distributed_gradients(engine, names, gradients);  // now the means over the ranks
    //! [named_gradients]
    for (const layer& l : net.layers)
        CHECK(l.gradient[0] == doctest::Approx(float(world.size() - 1) / 2));
}

}  // namespace

TEST_CASE("a graph of its own on each rank trains on an engine") {
    hvd_test::on_ranks([](communicator& world) {
        model net;
        train(world, net);
        for (layer& l : net.layers) {
            CHECK(l.weight[7] < 0.95f);
            hvd::compare_parameters(world, l.weight);
        }
    });
}

TEST_CASE("threads and uneven data") {
    hvd_test::on_ranks([](communicator& world) {
        model net;
        hvd::engine engine{world};
        hvd::distributed_optimizer optimizer(engine, hvd::optimizers::sgd<float>{.rate = 0.125f});
        for (layer& l : net.layers) optimizer.register_parameter(l.name, l.weight, l.gradient);
        epoch(engine, optimizer, net, 2 + world.rank() % 2);
        for (layer& l : net.layers)
            CHECK(l.weight[0] == 1 - 0.125f * float(world.size() > 1 ? 3 : 2));
    });
}

TEST_CASE("named_gradients snippet") { hvd_test::on_ranks(named_gradients); }

}  // namespace engine_snippets_tests
