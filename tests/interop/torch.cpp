// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include "torch_test.hpp"

#include <functional>

namespace torch_tests {

using communicator = hvd_test::communicator;
using hvd_test::numbers;
using hvd_test::set_numbers;

namespace {

constexpr std::int64_t batch = 24;
constexpr int steps = 4;

struct net : torch::nn::Module {
    torch::nn::Linear first{nullptr}, second{nullptr};
    net() {
        first = register_module("first", torch::nn::Linear(5, 7));
        second = register_module("second", torch::nn::Linear(7, 2));
        set_numbers(*this);
    }
    torch::Tensor loss(int step, int rank, int size) {
        // Each rank has every size-th sample of a batch. The scale makes the average the batch's
        // mean.
        const auto x = numbers(100 + step, {batch, 5}).slice(0, rank, batch, size);
        const auto y = numbers(200 + step, {batch, 2}).slice(0, rank, batch, size);
        const auto error = second(torch::tanh(first(x))) - y;
        return error.square().sum() * (double(size) / double(batch));
    }
};

using make_optimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

// An optimizer of any class, which has step() and nothing else.
struct any_optimizer {
    using value_type = double;
    std::unique_ptr<torch::optim::Optimizer> inner;
    void step() { inner->step(); }
};

std::vector<double> values_of(const torch::nn::Module& model) {
    std::vector<double> all;
    for (const auto& p : model.parameters()) {
        const auto flat = hvd::torch_view<double>(p);
        all.insert(all.end(), flat.data(), flat.data() + flat.size());
    }
    return all;
}

std::vector<double> trained_alone(const make_optimizer& make) {
    net model;
    const auto optimizer = make(model.parameters());
    for (int step = 0; step < steps; ++step) {
        optimizer->zero_grad();
        model.loss(step, 0, 1).backward();
        optimizer->step();
    }
    return values_of(model);
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
    double most = a.size() == b.size() ? 0 : INFINITY;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
        if (!(std::abs(a[i] - b[i]) <= most)) most = std::abs(a[i] - b[i]);
    return most;
}

}  // namespace

TEST_CASE("N ranks with LibTorch's optimizers equal one rank with the whole batch") {
    const make_optimizer makers[] = {
        [](auto p) { return std::make_unique<torch::optim::SGD>(p, 0.05); },
        [](auto p) {
            return std::make_unique<torch::optim::SGD>(
                p, torch::optim::SGDOptions(0.02).momentum(0.9));
        },
        [](auto p) { return std::make_unique<torch::optim::Adam>(p, 0.01); },
    };
    for (const auto& make : makers) {
        const auto expected = trained_alone(make);
        hvd_test::on_ranks([&](communicator& comm) {
            net model;
            hvd::distributed_optimizer optimizer(comm, any_optimizer{make(model.parameters())},
                                                 {.bucket_bytes = 100});
            hvd::torch_gradients gradients(optimizer, model);
            for (int step = 0; step < steps; ++step) {
                optimizer.zero_gradients();
                model.loss(step, comm.rank(), comm.size()).backward();
                CHECK(optimizer.buckets() > 1);
                CHECK(optimizer.buckets_started() ==
                      optimizer.buckets());  // from inside backward()
                optimizer.step();
            }
            CHECK(distance(values_of(model), expected) < 1e-9);
        });
    }
}

namespace {

// The graph depends on the rank and the step: the order of two layers, and the use of a third.
struct changing_net : torch::nn::Module {
    torch::nn::Linear a{nullptr}, b{nullptr}, sometimes{nullptr};
    changing_net() {
        a = register_module("a", torch::nn::Linear(5, 5));
        b = register_module("b", torch::nn::Linear(5, 5));
        sometimes = register_module("sometimes", torch::nn::Linear(5, 5));
        set_numbers(*this);
    }
    torch::Tensor loss(int step, int part, int parts) {
        const auto x = numbers(100 + step, {batch, 5}).slice(0, part, batch, parts);
        const bool swaps = (step + part) % 2 == 0;
        auto y = swaps ? b(torch::tanh(a(x))) : a(torch::tanh(b(x)));
        if ((step + part) % 3 == 0) y = sometimes(y);
        return y.square().sum() * (double(parts) / double(batch));
    }
};

}  // namespace

TEST_CASE("on an engine a module trains whose graph differs between ranks and steps") {
    hvd_test::on_ranks([](communicator& comm) {
        changing_net alone;
        torch::optim::SGD sgd(alone.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
        changing_net model;
        if (comm.rank() != 0) {
            torch::NoGradGuard guard;
            for (auto& p : model.parameters()) p.zero_();
        }
        //! [torch engine]
        hvd::engine engine{comm};
        hvd::distributed_optimizer optimizer(
            engine, any_optimizer{std::make_unique<torch::optim::SGD>(
                        model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9))});
        hvd::torch_gradients gradients(optimizer, model);
        hvd::broadcast_module(engine, model);
        for (int step = 0; step < 12; ++step) {
            optimizer.zero_gradients();
            model.loss(step, comm.rank(), comm.size()).backward();  // its own graph on each rank
            optimizer.step();
        }
        //! [torch engine]
        for (int step = 0; step < 12; ++step) {
            for (auto& p : alone.parameters()) p.mutable_grad() = torch::zeros_like(p.detach());
            for (int part = 0; part < comm.size(); ++part)
                (alone.loss(step, part, comm.size()) / double(comm.size())).backward();
            sgd.step();
        }
        CHECK(distance(values_of(model), values_of(alone)) < 1e-9);
        hvd::compare_parameters(optimizer);
    });
}

TEST_CASE("an engine brings LibTorch's state of rank 0 to all ranks") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::engine engine{comm};
        net model;
        torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        if (comm.rank() == 0) {
            model.loss(0, 0, 1).backward();
            sgd.step();
        }
        CHECK(sgd.state().empty() == (comm.rank() != 0));
        hvd::broadcast_optimizer_state(engine, sgd);
        CHECK(sgd.state().size() == model.parameters().size());  // the momentum of each
    });
}

TEST_CASE("an optimizer of LibTorch goes into the distributed one as it is") {
    hvd_test::on_ranks([](communicator& world) {
        torch::nn::Linear net(3, 1);
        const auto images = torch::ones({1, 3});
        //! [torch]
        hvd::distributed_optimizer optimizer(world, torch::optim::SGD(net->parameters(), 1.0));
        hvd::torch_gradients gradients(optimizer, *net);  // reports from inside backward()
        hvd::broadcast_module(world, *net);               // all ranks begin with that of rank 0
        //! [torch]
        const auto before = net->bias.item<float>();
        //! [torch step]
        optimizer.zero_gradients();
        (net->forward(images) * double(world.rank())).sum().backward();
        optimizer.step();
        //! [torch step]
        CHECK(net->bias.item<float>() == doctest::Approx(before - float(world.size() - 1) / 2));
    });
}

TEST_CASE("the state of LibTorch's optimizers becomes the root's, with and without a step before") {
    const make_optimizer makers[] = {
        [](auto p) {
            return std::make_unique<torch::optim::SGD>(p,
                                                       torch::optim::SGDOptions(0.1).momentum(0.9));
        },
        [](auto p) { return std::make_unique<torch::optim::Adam>(p, 0.01); },
        [](auto p) { return std::make_unique<torch::optim::Adagrad>(p, 0.1); },
    };
    for (const auto& make : makers)
        hvd_test::on_ranks([&](communicator& comm) {
            net model;
            const auto optimizer = make(model.parameters());
            const auto step = [&](int data) {
                optimizer->zero_grad();
                model.loss(data, 0, 1).backward();
                optimizer->step();
            };
            for (int s = 0; s < (comm.rank() % 2 == 0 ? 3 : 0); ++s) step(10 * comm.rank() + s);
            hvd::broadcast_module(comm, model);
            hvd::broadcast_optimizer_state(comm, *optimizer);
            step(99);
            const auto mine = values_of(model);
            const auto all = comm.allgather(mine);
            for (std::size_t i = 0; i < all.values.size(); ++i)
                CHECK(all.values[i] == all.values[i % mine.size()]);
        });
}

TEST_CASE("parameters that do not require gradients are frozen, until they do") {
    hvd_test::on_ranks([](communicator& comm) {
        torch::nn::Linear model(2, 1);
        hvd::broadcast_module(comm, *model);
        model->weight.set_requires_grad(false);
        hvd::distributed_optimizer optimizer(
            comm, torch::optim::SGD(model->parameters(),
                                    torch::optim::SGDOptions(1.0).weight_decay(0.25)));
        hvd::torch_gradients gradients(optimizer, *model);
        const auto before = model->weight.clone();
        const auto step = [&] {
            optimizer.zero_gradients();
            model->forward(torch::ones({1, 2})).sum().backward();
            optimizer.step();
        };
        step();
        CHECK(torch::equal(model->weight, before));  // not even weight decay
        model->weight.set_requires_grad(true);
        model->zero_grad();  // it drops gradients: they are kept for this
        gradients.follow_requires_grad();
        step();
        CHECK(torch::allclose(model->weight, before * 0.75 - 1));
        model->weight.set_requires_grad(false);
        gradients.follow_requires_grad();
        step();
        CHECK(torch::allclose(model->weight, before * 0.75 - 1));
    });
}

TEST_CASE("a gradient that was replaced is refused with its name") {
    hvd::run_threads(1, [](hvd::communicator<hvd::threads>& comm) {
        torch::nn::Linear model(2, 1);
        hvd::distributed_optimizer optimizer(comm, torch::optim::SGD(model->parameters(), 1.0));
        hvd::torch_gradients gradients(optimizer, *model);
        model->weight.mutable_grad() = torch::zeros({1, 2});
        CHECK_THROWS_WITH(model->forward(torch::ones({1, 2})).sum().backward(),
                          doctest::Contains("the gradient of \"weight\" is not where it was"));
    });
}

TEST_CASE("a module whose gradients have no more listener trains by itself") {
    hvd::run_threads(1, [](hvd::communicator<hvd::threads>& comm) {
        torch::nn::Linear model(2, 1);
        hvd::distributed_optimizer optimizer(comm, torch::optim::SGD(model->parameters(), 1.0));
        {
            hvd::torch_gradients gradients(optimizer, *model);
        }
        model->forward(torch::ones({1, 2})).sum().backward();
        CHECK(optimizer.buckets_started() == 0);
    });
}

TEST_CASE("a module's parameters and buffers become the root's, whatever their element types") {
    hvd_test::on_ranks([](communicator& comm) {
        torch::nn::BatchNorm1d model(4);
        if (comm.rank() == 0) {
            torch::NoGradGuard guard;
            model->weight.fill_(3);
            model->running_mean.fill_(0.25);
            model->num_batches_tracked.fill_(17);
        }
        hvd::broadcast_module(comm, *model);
        CHECK(model->weight[3].item<float>() == 3);
        CHECK(model->running_mean[1].item<float>() == 0.25f);
        CHECK(model->num_batches_tracked.item<std::int64_t>() == 17);
    });
}

TEST_CASE("a LibTorch tensor is reduced where it lies; one with gaps is packed") {
    hvd_test::on_ranks([](communicator& comm) {
        auto matrix = torch::arange(6, torch::kFloat32).reshape({2, 3});
        auto transposed = matrix.t();
        comm.allreduce(hvd::torch_view<float, hvd::host, 2>(transposed), hvd::sum);
        comm.allreduce(hvd::torch_view<float>(matrix), hvd::sum);
        CHECK(matrix[1][2].item<float>() == 5 * float(comm.size() * comm.size()));
        for (const auto type :
             {torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64, torch::kUInt8,
              torch::kBool, torch::kFloat16, torch::kBFloat16, torch::kFloat64}) {
            const auto tensor = torch::full({3}, comm.rank() == 0 ? 1 : 0, type);
            hvd::with_torch_view(tensor, [&](auto view) { comm.broadcast(view); });
            CHECK(tensor[2].item<float>() == 1);
        }
    });
}

TEST_CASE("a LibTorch tensor that is not what the caller says is refused with both") {
    const auto f = torch::zeros({2, 3});
    CHECK_THROWS_WITH_AS(hvd::torch_view<double>(f),
                         doctest::Contains("has elements of float32, expected float64"),
                         hvd::usage_error);
    CHECK_THROWS_WITH_AS((hvd::torch_view<float, hvd::device>(f)),
                         doctest::Contains("is in host memory"), hvd::usage_error);
    CHECK_THROWS_WITH_AS(hvd::torch_view<float>(f.t()), doctest::Contains("has gaps"),
                         hvd::usage_error);
    CHECK_THROWS_WITH_AS((hvd::torch_view<float, hvd::host, 1>(f)),
                         doctest::Contains("has 2 dimensions"), hvd::usage_error);
    CHECK_THROWS_WITH_AS(hvd::torch_view<float>(torch::Tensor()), doctest::Contains("undefined"),
                         hvd::usage_error);
    CHECK_THROWS_WITH_AS(hvd::torch_view<float>(f.to_sparse()), doctest::Contains("sparse"),
                         hvd::usage_error);
}

}  // namespace torch_tests
