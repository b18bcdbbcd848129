// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The state of LibTorch's optimizers in checkpoints and broadcasts.

#include "torch_test.hpp"

#include <hvd/checkpoint.hpp>

#include "../train/shared_folder.hpp"

namespace torch_state_tests {

using communicator = hvd_test::communicator;
using hvd_test::numbers;
using hvd_test::set_numbers;
using hvd_test::shared_folder;

namespace {

struct net : torch::nn::Module {
    torch::nn::Linear first{nullptr}, second{nullptr};
    net() {
        first = register_module("first", torch::nn::Linear(3, 4));
        second = register_module("second", torch::nn::Linear(4, 2));
        set_numbers(*this);
    }
    torch::Tensor loss(int step, int rank) {
        const auto x = numbers(100 + step + rank, {6, 3}), y = numbers(200 + step, {6, 2});
        return (second(torch::tanh(first(x))) - y).square().sum();
    }
    std::vector<double> values() const {
        std::vector<double> all;
        for (const auto& p : parameters()) {
            const auto flat = hvd::torch_view<double>(p);
            all.insert(all.end(), flat.data(), flat.data() + flat.size());
        }
        return all;
    }
};

// A module, an optimizer of LibTorch with two groups of its parameters, and their distribution.
template <class O>
struct trainee {
    using options = typename hvd::detail::torch_parts<O>::options;
    net model;
    hvd::distributed_optimizer<communicator, O, double> optimizer;
    hvd::torch_gradients<communicator, O, double> gradients;

    trainee(communicator& comm, const options& first, const options& second)
        : optimizer(comm, made(model, first, second)), gradients(optimizer, model) {}

    static O made(net& model, const options& first, const options& second) {
        return O({torch::optim::OptimizerParamGroup(model.second->parameters(),
                                                    std::make_unique<options>(second)),
                  torch::optim::OptimizerParamGroup(model.first->parameters(),
                                                    std::make_unique<options>(first))},
                 first);
    }
    void train(int from, int to) {
        for (int step = from; step < to; ++step) {
            optimizer.zero_gradients();
            model.loss(step, optimizer.comm().rank()).backward();
            optimizer.step();
        }
    }
    double rate(std::size_t group) {
        return static_cast<options&>(optimizer.optimizer().param_groups()[group].options()).lr();
    }
};

// A run that is interrupted has the bits of one that is not.
template <class O, class Options>
void go_on(communicator& comm, const Options& first, const Options& second) {
    const shared_folder folder(comm);
    trainee<O> whole(comm, first, second);
    whole.train(0, 3);
    hvd::save_checkpoint(folder / "c", whole.optimizer, {.step = 3});
    whole.train(3, 5);
    trainee<O> fresh(comm, Options(0.5), Options(0.25)), stepped(comm, Options(0.5), Options(0.5));
    stepped.train(7, 9);
    for (trainee<O>* resumed : {&fresh, &stepped}) {
        CHECK(hvd::load_checkpoint(folder / "c", resumed->optimizer).step == 3);
        CHECK(resumed->rate(0) == second.lr());
        CHECK(resumed->rate(1) == first.lr());
        resumed->train(3, 5);
        CHECK(resumed->model.values() == whole.model.values());
    }
}

}  // namespace

TEST_CASE("a run with LibTorch's optimizers goes on to the same bits") {
    hvd_test::on_ranks([](communicator& comm) {
        using namespace torch::optim;
        go_on<SGD>(comm, SGDOptions(0.01), SGDOptions(0.02).weight_decay(0.1));
        go_on<SGD>(comm, SGDOptions(0.01).momentum(0.9).nesterov(true),
                   SGDOptions(0.02).momentum(0.5).dampening(0.2));
        go_on<Adam>(comm, AdamOptions(0.01).betas({0.8, 0.9}), AdamOptions(0.02).amsgrad(true));
        go_on<AdamW>(comm, AdamWOptions(0.01), AdamWOptions(0.02).weight_decay(0));
        go_on<RMSprop>(comm, RMSpropOptions(0.01).centered(true),
                       RMSpropOptions(0.02).momentum(0.9));
        go_on<Adagrad>(comm, AdagradOptions(0.1).lr_decay(0.1), AdagradOptions(0.2));
    });
}

TEST_CASE("the state of LibTorch's optimizer has LibTorch's names in a checkpoint") {
    hvd_test::on_ranks([](communicator& world) {
        const shared_folder folder(world);
        const std::string path = folder / "c";
        torch::nn::Linear net(3, 1);
        hvd::distributed_optimizer optimizer(world, torch::optim::Adam(net->parameters(), 0.5));
        hvd::torch_gradients gradients(optimizer, *net);
        (net->forward(torch::ones({1, 3})) * 2).sum().backward();
        optimizer.step();
        //! [torch_checkpoint]
        hvd::save_checkpoint(path, optimizer, {.epoch = 1});
        const auto progress = hvd::load_checkpoint(path, optimizer);
        //! [torch_checkpoint]
        CHECK(progress.epoch == 1);
        const hvd::safetensors_file file(path);
        CHECK(file.tensors().at("optimizer.exp_avg.weight").bytes == 3 * sizeof(float));
        CHECK(file.tensors().contains("optimizer.exp_avg_sq.bias"));
        CHECK(file.tensors().contains("optimizer.step.bias"));
        CHECK_FALSE(file.tensors().contains("optimizer.max_exp_avg_sq.bias"));
        CHECK(file.metadata().at("optimizer.lr") == "0.5");
        CHECK(file.metadata().at("optimizer.beta2") == "0.999");
        world.barrier();  // all have read the file
    });
}

TEST_CASE("the root's state of LibTorch's optimizer becomes everybody's, also where it has none") {
    hvd_test::on_ranks([](communicator& comm) {
        using torch::optim::Adam;
        using torch::optim::AdamOptions;
        for (const bool root_has_stepped : {true, false}) {
            auto alone = comm.split(comm.rank());  // each rank steps by itself
            trainee<Adam> of_one(alone, AdamOptions(comm.rank() == 0 ? 0.1 : 0.2),
                                 AdamOptions(0.3));
            if ((comm.rank() % 2 == 0) == root_has_stepped)
                of_one.train(comm.rank(), comm.rank() + 2);
            // of_one's optimizer is told by a communicator of all
            hvd::distributed_optimizer<communicator, Adam, double> all(
                comm, std::move(of_one.optimizer.optimizer()));
            hvd::torch_gradients gradients(all, of_one.model);
            hvd::broadcast_optimizer_state(all);
            hvd::broadcast_module(comm, of_one.model);
            all.zero_gradients();
            of_one.model.loss(9, 0).backward();
            all.step();
            hvd::compare_parameters(all);
            CHECK(static_cast<AdamOptions&>(all.optimizer().param_groups()[1].options()).lr() ==
                  0.1);
            CHECK(all.optimizer().state().size() == 4);
        }
    });
}

TEST_CASE("a checkpoint of another optimizer of LibTorch is refused and changes nothing") {
    hvd_test::on_ranks([](communicator& comm) {
        using namespace torch::optim;
        const shared_folder folder(comm);
        trainee<Adam> adam(comm, AdamOptions(0.01), AdamOptions(0.02));
        adam.train(0, 1);
        hvd::save_checkpoint(folder / "adam", adam.optimizer, {});
        trainee<SGD> sgd(comm, SGDOptions(0.5), SGDOptions(0.5));
        const auto before = sgd.model.values();
        CHECK_THROWS_WITH_AS(hvd::load_checkpoint(folder / "adam", sgd.optimizer),
                             doctest::Contains("optimizer."), hvd::checkpoint_error);
        CHECK(sgd.model.values() == before);
        CHECK(sgd.rate(0) == 0.5);
        net model;
        hvd::distributed_optimizer<communicator, Adam, double> one(comm,
                                                                   Adam(model.parameters(), 0.5));
        hvd::torch_gradients gradients(one, model);
        CHECK_THROWS_WITH_AS(hvd::load_checkpoint(folder / "adam", one),
                             doctest::Contains("\"optimizer.group1."), hvd::checkpoint_error);
    });
}

TEST_CASE("parameters without state, and those that are not registered") {
    hvd_test::on_ranks([](communicator& comm) {
        using torch::optim::Adam;
        using torch::optim::AdamOptions;
        const shared_folder folder(comm);
        trainee<Adam> now(comm, AdamOptions(0.01), AdamOptions(0.02));
        now.model.first->weight.set_requires_grad(false);
        now.gradients.follow_requires_grad();
        now.train(0, 2);
        hvd::save_checkpoint(folder / "c", now.optimizer, {});
        trainee<Adam> all(comm, AdamOptions(0.01), AdamOptions(0.02));
        all.train(0, 1);
        CHECK(all.optimizer.optimizer().state().size() == 4);
        hvd::load_checkpoint(folder / "c", all.optimizer);
        CHECK(all.optimizer.optimizer().state().size() == 3);

        net model;
        hvd::distributed_optimizer<communicator, Adam, double> bare(comm,
                                                                    Adam(model.parameters(), 0.5));
        CHECK_THROWS_WITH_AS(hvd::broadcast_optimizer_state(bare), doctest::Contains("registered"),
                             hvd::usage_error);
    });
}

}  // namespace torch_state_tests
