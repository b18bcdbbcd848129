// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The programs of docs/training.md and of the reference of train/, each between two lines `//!
// [name]`.

#include <algorithm>
#include <cstdio>
#include <hvd/train.hpp>
#include <optional>

#include "hvd_test.hpp"

namespace snippets_tests {

using communicator = hvd_test::communicator;

namespace {

// The loss is (w - target)². Each rank has another target.
struct network {
    std::vector<float> weight = {4, 4}, gradient = {0, 0};
    void backward(float target, float factor = 1) {
        for (std::size_t k = 0; k < weight.size(); ++k)
            gradient[k] += factor * 2 * (weight[k] - target);
    }
    // Adds the gradient of one of many samples.
    void learn(std::size_t sample) {
        ++learnt;
        backward(float(sample % 7));
    }
    std::size_t learnt = 0;
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

//! [member]
class trainer {
public:
    trainer(communicator& world, network& model) : optimizer_(world, {.rate = 0.25f}) {
        optimizer_.register_parameter("weight", model.weight, model.gradient);
        hvd::broadcast_parameters(optimizer_);
    }
    void step() { optimizer_.step(); }

private:
    hvd::distributed_optimizer<communicator, hvd::optimizers::sgd<float>> optimizer_;
};
//! [member]

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

//! [no_sync]
// Each rank adds up as many passes as it likes. Only the last one reports.
template <class Optimizer>
void accumulate(Optimizer& optimizer, network& model, float target, int passes) {
    {
        const auto quiet = optimizer.no_sync();
        for (int pass = 1; pass < passes; ++pass) {
            model.backward(target);
            optimizer.gradient_ready(0);  // does not count
        }
    }
    model.backward(target);
    optimizer.gradient_ready(0);
}
//! [no_sync]

//! [passes]
void train_in_passes(communicator& world, network& model, float target) {
    hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.25f},
                                         {.backward_passes_per_step = 4, .average_passes = true});
    const std::size_t weight = optimizer.register_parameter("weight", model.weight, model.gradient);
    for (int step = 0; step < 50; ++step) {
        optimizer.zero_gradients();
        for (int pass = 0; pass < 4; ++pass) {
            model.backward(target);            // adds to the gradient
            optimizer.gradient_ready(weight);  // the fourth report sends it
        }
        optimizer.step();
    }
}
//! [passes]

//! [bfloat16_gradients]
void train_with_half_the_bytes(communicator& world, network& model, float target) {
    hvd::distributed_optimizer optimizer(
        world, hvd::optimizers::sgd<float>{.rate = 0.25f},
        {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)});
    optimizer.register_parameter("weight", model.weight, model.gradient);
    for (int step = 0; step < 50; ++step) {
        optimizer.zero_gradients();
        model.backward(target);
        optimizer.step();  // parameters and the optimizer's state stay in float
    }
}
//! [bfloat16_gradients]

//! [uneven_scope]
// Returns the number of steps in which this rank had a batch.
int train_on_uneven_data(communicator& world, network& model, std::size_t samples, float target) {
    constexpr std::size_t batch = 16;
    hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.25f});
    optimizer.register_parameter("weight", model.weight, model.gradient);
    int steps = 0;
    hvd::uneven_scope scope(world);
    for (std::size_t done = 0; scope.begin_step(std::min(batch, samples - done));) {
        optimizer.zero_gradients();
        if (scope.takes_part()) {  // this rank has samples left
            model.backward(target);
            done += std::min(batch, samples - done);
            ++steps;
        }
        scope.weigh(model.gradient);  // by this rank's share of the samples
        optimizer.step();
    }
    return steps;
}
//! [uneven_scope]

//! [flat_buffer]
// All parameters are one buffer and all gradients another one, as in llm.c.
void train_flat(communicator& world, float* parameters, float* gradients, std::size_t count) {
    world.broadcast(hvd::view(parameters, count), hvd::root{0});
    auto average = world.plan_allreduce(hvd::view(gradients, count), hvd::average);
    for (int step = 0; step < 10; ++step) {
        for (std::size_t i = 0; i < count; ++i)  // your backward pass
            gradients[i] = parameters[i] - float(world.rank());
        average.run();                           // the gradients are now the mean of all ranks
        for (std::size_t i = 0; i < count; ++i)  // your update
            parameters[i] -= 0.5f * gradients[i];
    }
}
//! [flat_buffer]

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

TEST_CASE("snippets of the guide's tasks") {
    hvd_test::on_ranks([](communicator& world) {
        network passes, halved, uneven;
        train_in_passes(world, passes, float(world.rank()));
        CHECK(passes.weight[0] == doctest::Approx(mean_target(world)));
        train_with_half_the_bytes(world, halved, float(world.rank()));
        CHECK(halved.weight[0] == doctest::Approx(mean_target(world)).epsilon(0.02));
        const std::size_t samples = 16 + 32 * std::size_t(world.rank());
        CHECK(train_on_uneven_data(world, uneven, samples, 3) == 1 + 2 * world.rank());
        CHECK(uneven.weight[0] < 4);
        std::vector<float> parameters(5, float(world.rank())), gradients(5);
        train_flat(world, parameters.data(), gradients.data(), 5);
        CHECK(parameters[4] == doctest::Approx(mean_target(world)).epsilon(0.01));
    });
}

TEST_CASE("no_sync and unreported snippets") {
    hvd_test::on_ranks([](communicator& world) {
        network model;
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.25f});
        optimizer.register_parameter("weight", model.weight, model.gradient);
        accumulate(optimizer, model, 3, 1 + world.rank());
        CHECK(optimizer.buckets_started() == 1);
        optimizer.step();

        std::vector<float> head(2), d_head(2);
        optimizer.register_parameter("head", head, d_head);
        const auto backward = [&] { optimizer.gradient_ready(0); };
        //! [unreported]
        backward();
        optimizer.step();
        std::string names;
        for (const std::size_t i : optimizer.unreported()) names += optimizer.name(i) + " ";
        //! [unreported]
        CHECK(names == "head ");
    });
}

TEST_CASE("float_masters snippet") {
    //! [nesterov]
    const hvd::optimizers::sgd<float> nesterov{
        .rate = 0.1f, .momentum = 0.9f, .nesterov = true, .weight_decay = 5e-4f};
    //! [nesterov]
    CHECK(nesterov.nesterov);
    hvd_test::on_ranks([](communicator& world) {
        //! [float_masters]
        using adam_with_masters =
            hvd::optimizers::float_masters<hvd::bfloat16, hvd::optimizers::adam<float>>;
        hvd::distributed_optimizer optimizer(world, adam_with_masters{{.rate = 1e-3f}});
        //! [float_masters]
        std::vector<hvd::bfloat16> value(1, hvd::bfloat16(1.0f)), gradient = value;
        optimizer.register_parameter("w", value, gradient);
        for (int step = 0; step < 16; ++step) optimizer.step();
        CHECK(float(value[0]) == doctest::Approx(1 - 0.016).epsilon(0.002));
    });
}

TEST_CASE("run_and_apply snippet") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> weight(1000), gradient(1000, float(world.rank()));
        //! [run_and_apply]
        auto plan = world.plan_allreduce(gradient, hvd::average);
        hvd::fused_step step{hvd::fuse(weight), hvd::optimizers::adam<float>{.rate = 0.01f}};
        plan.run_and_apply(step);  // instead of plan.run() and a step on every rank
        //! [run_and_apply]
        CHECK(weight[0] == doctest::Approx(world.size() > 1 ? -0.01 : 0));
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
            world, hvd::optimizers::sgd<float>{.rate = float(world.rank() + 1), .momentum = 0.9f});
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

TEST_CASE("compare_parameters snippet") {
    hvd_test::on_ranks([](communicator& world) {
        network model;
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{});
        optimizer.register_parameter("weight", model.weight, model.gradient);
        //! [compare_parameters]
        hvd::compare_parameters(optimizer);            // the registered parameters, by their names
        hvd::compare_parameters(world, model.weight);  // or any tensors
        //! [compare_parameters]
    });
}

TEST_CASE("register_parameters snippet") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<std::vector<float>> weights(3, std::vector<float>(2)), gradients = weights;
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{});
        //! [register_parameters]
        optimizer.register_parameters("layers", weights, gradients);  // "layers.0", "layers.1", …
        //! [register_parameters]
        CHECK(optimizer.name(2) == "layers.2");
    });
}

TEST_CASE("on_root snippet") {
    hvd_test::on_ranks([](communicator& world) {
        const auto read_names = [] { return std::vector<std::string>{"cat", "dog"}; };
        //! [on_root]
        const std::vector<std::string> names = hvd::on_root(world, read_names);
        //! [on_root]
        CHECK(names.size() == 2);
    });
}

TEST_CASE("member snippet") {
    hvd_test::on_ranks([](communicator& world) {
        network model;
        trainer trains(world, model);
        model.backward(1);
        trains.step();
        CHECK(model.weight[0] == 2.5f);
    });
}

TEST_CASE("metrics snippet") {
    hvd_test::on_ranks([](communicator& world) {
        const double loss = world.rank(), accuracy = 1, samples = 1;
        //! [metrics]
        std::vector<hvd::metric> metrics = {{"loss", loss}, {"accuracy", accuracy}};
        hvd::average_metrics(world, metrics, samples);  // the number of this rank's samples
        hvd::on_root(world, [&] { std::printf("loss %g\n", metrics[0].mean); });
        //! [metrics]
        CHECK(metrics[0].mean == doctest::Approx((world.size() - 1) / 2.0));
    });
}

TEST_CASE("schedule snippet") {
    hvd_test::on_ranks([](communicator& world) {
        //! [schedule]
        const double rate = hvd::scale_rate(0.1, {.ranks = world.size()});
        const hvd::rate_schedule late{0.1, {.start_epoch = 30}};  // a tenth from epoch 30 on
        const auto rate_at = [&](double epoch) {
            return rate * hvd::warmup_factor(epoch, {.ranks = world.size(), .epochs = 5}) *
                   late.factor_at(epoch);
        };
        //! [schedule]
        CHECK(rate_at(0) == doctest::Approx(0.1));
        CHECK(rate_at(5) == doctest::Approx(0.1 * world.size()));
        CHECK(rate_at(30) == doctest::Approx(0.01 * world.size()));
    });
}

TEST_CASE("sampler snippet") {
    hvd_test::on_ranks([](communicator& world) {
        network model;
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{});
        optimizer.register_parameter("weight", model.weight, model.gradient);
        std::size_t steps = 0;
        //! [sampler]
        hvd::sharded_sampler sampler(1001, world, {.seed = 42});
        for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
            sampler.begin_epoch({.epoch = epoch});  // an order of its own, the same on all ranks
            optimizer.begin_epoch(epoch);           // a rank in another epoch is an error
            for (std::size_t step = 0; step < sampler.steps(32); ++step, ++steps) {
                const double done = sampler.epoch_after(step, 32);  // 0.1: a tenth of epoch 0
                optimizer.optimizer().rate =
                    float(0.1 * hvd::warmup_factor(done, {.ranks = world.size()}));
                optimizer.zero_gradients();
                for (const std::size_t sample : sampler.batch(step, 32)) model.learn(sample);
                optimizer.step();
            }
        }
        //! [sampler]
        const std::size_t each = (1001 + std::size_t(world.size()) - 1) / std::size_t(world.size());
        CHECK(model.learnt == 3 * each);
        CHECK(steps == 3 * ((each + 31) / 32));
    });
}

TEST_CASE("buffers snippet") {
    hvd_test::on_ranks([](communicator& world) {
        network model;
        std::vector<float> running_mean(2, float(world.rank())), running_variance(2, 1);
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.25f});
        optimizer.register_parameter("weight", model.weight, model.gradient);
        //! [buffers]
        optimizer.register_buffer("mean", running_mean);  // averaged
        optimizer.register_buffer("variance", running_variance, hvd::buffer_policy::from_root);
        // … and before an evaluation or a checkpoint:
        hvd::synchronize_buffers(optimizer);
        //! [buffers]
        CHECK(running_mean[1] == doctest::Approx(mean_target(world)));
    });
}

TEST_CASE("step watch snippet") {
    hvd_test::on_ranks([](communicator& world) {
        network model;
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.25f});
        optimizer.register_parameter("weight", model.weight, model.gradient);
        const float target = 2;
        std::string text;
        //! [step_watch]
        hvd::step_watch watch(optimizer);
        for (int step = 0; step < 50; ++step) {
            optimizer.zero_gradients();
            model.backward(target);
            watch.step(32);  // optimizer.step(), with the samples of this rank
        }
        const hvd::step_summary summary = watch.summary();
        if (world.rank() == summary.slowest) text = summary.text();
        //! [step_watch]
        CHECK(model.weight[0] == doctest::Approx(target));
        CHECK(text.empty() == (world.rank() != summary.slowest));
    });
}

TEST_CASE("loss scale snippet") {
    hvd_test::on_ranks([](communicator& world) {
        network model;
        const float target = 2;
        //! [loss_scale]
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.25f},
                                             {.skip_nonfinite = true});
        optimizer.register_parameter("weight", model.weight, model.gradient);
        hvd::loss_scale scale{.value = 1024};
        for (int step = 0; step < 50; ++step) {
            optimizer.zero_gradients();
            model.backward(target, float(scale.value));  // of the loss times the scale
            auto gradients = optimizer.synchronize();
            scale.unscale(gradients);
            hvd::clip_by_norm(gradients, 10.0);  // of the loss itself
            scale.update(optimizer.apply(std::move(gradients)));
        }
        //! [loss_scale]
        CHECK(model.weight[0] == doctest::Approx(target));
    });
}

TEST_CASE("loader snippet") {
    std::vector<int> used;
    //! [loader]
    hvd::background_loader loader(
        [next = 0]() mutable -> std::optional<std::vector<int>> {
            if (next == 3) return std::nullopt;
            return std::vector<int>(8, next++);  // read and decode here, in the loader's thread
        },
        2);
    while (const auto batch = loader.next()) used.push_back(batch->front());
    //! [loader]
    CHECK(used == std::vector<int>{0, 1, 2});
}

TEST_CASE("sparse snippet") {
    hvd_test::on_ranks([](communicator& world) {
        //! [sparse]
        // This rank's rows of an embedding with 1000 rows of 2 numbers; row 7 stands twice.
        const hvd::sparse_rows<float> mine = {{7, 3, 7}, {1, 1, 2, 2, 3, 3}};
        const auto mean = hvd::sparse_allreduce<communicator, float>(world, mine, 1000, 2);
        //! [sparse]
        CHECK(mean.indices == std::vector<std::int64_t>{3, 7});
        CHECK(mean.values[2] == doctest::Approx(4));
    });
}

TEST_CASE("register_sparse snippet") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> table(1000 * 2), gradient(table.size());
        //! [register_sparse]
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.5f});
        const std::size_t words = optimizer.register_sparse("words", table, gradient, 2);
        const hvd::sparse_rows<float> rows = {{7, 3, 7},
                                              {1, 1, 2, 2, 3, 3}};  // of this rank's batch
        optimizer.gradient_ready(words, rows);
        optimizer.step();
        //! [register_sparse]
        CHECK(table[14] == doctest::Approx(-2));
    });
}

TEST_CASE("lazy_rows snippet") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> table(1000 * 2, 1), gradient(table.size());
        //! [lazy_rows]
        hvd::distributed_optimizer optimizer(
            world, hvd::optimizers::lazy_rows<hvd::optimizers::adam<float>>{{.rate = 0.5f}});
        const std::size_t words = optimizer.register_sparse("words", table, gradient, 2);
        optimizer.gradient_ready(words, hvd::sparse_rows<float>{{7}, {1, 1}});
        optimizer.step();  // changes row 7 alone
        //! [lazy_rows]
        CHECK(table[14] == doctest::Approx(0.5));
        CHECK(table[16] == 1);
    });
}

TEST_CASE("grouped snippet") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> weight(4, 1), d_weight(4), bias(1, 1), d_bias(1);
        //! [grouped]
        using adamw = hvd::optimizers::adamw<float>;
        hvd::distributed_optimizer optimizer(
            world, hvd::optimizers::grouped<adamw>{{.rate = 1e-3f, .weight_decay = 0.01f}});
        optimizer.register_parameter("weight", weight, d_weight);
        const std::size_t b = optimizer.register_parameter("bias", bias, d_bias);
        auto& groups = optimizer.optimizer();
        groups.add_group({.rate = 1e-3f, .weight_decay = 0}, {b});  // no decay of biases

        for (std::size_t g = 0; g < groups.groups(); ++g) groups.group(g).rate *= 0.5f;
        optimizer.step();
        //! [grouped]
        CHECK(weight[0] < 1);
        CHECK(bias[0] == 1);
    });
}

TEST_CASE("sync_batch_norm snippet") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> x(2 * 3 * 4, float(world.rank())), y(x.size()), dy(x.size()),
            dx(x.size());
        //! [sync_batch_norm]
        hvd::sync_batch_norm<float> norm(3, {.order = hvd::channel_order::first});
        const auto samples = hvd::shape(2, 3, 4);  // of 3 channels, as in LibTorch
        norm.forward(world, hvd::view(x.data(), samples), y);
        norm.backward(world, dy, dx);  // x is as it was
        norm.evaluate(hvd::view(x.data(), samples), y);
        //! [sync_batch_norm]
        CHECK(norm.count() == 8 * world.size());
    });
}

TEST_CASE("adasum snippet") {
    hvd_test::on_ranks([](communicator& world) {
        //! [adasum]
        std::vector<float> change(8, 1);
        world.allreduce(change, hvd::adasum);  // equal changes stay as they are
        //! [adasum]
        CHECK(change[5] == doctest::Approx(1));
    });
}

TEST_CASE("vjp snippet") {
    hvd_test::on_ranks([](communicator& world) {
        const std::vector<float> mine(2, 1);
        //! [vjp]
        const auto all = world.allgather(mine);  // forward

        const std::vector<float> of_all(all.values.size(),
                                        1);  // the gradient of all.values, from the loss
        hvd::vjp<communicator> derivatives(world);
        const std::vector<float> of_mine = derivatives.allgather(of_all, all.counts);  // backward
        //! [vjp]
        CHECK(of_mine == std::vector<float>(2, float(world.size())));
    });
}

}  // namespace snippets_tests
