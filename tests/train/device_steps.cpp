// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Steps of a trainer whose tensors are on the device: overlap, frozen and local parameters, steps
// that are left out, sparse gradients, optimizers of the user, state.

#include <thread>

#include <hvd/checkpoint.hpp>

#include "device_model.hpp"
#include "temporary_directory.hpp"

namespace device_steps_tests {

using namespace device_test;
namespace optimizers = hvd::optimizers;

namespace {

using floats = std::vector<float>;

}  // namespace

TEST_CASE(
    "a bucket starts when its last gradient is reported, and on the streams of all its "
    "gradients") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s, other;
        const tensor<float> w{1, 2}, v{3}, dw{-1, -1}, dv{-1};
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1},
                                             {.groups = {{0, 1}}});
        CHECK(optimizer.register_parameter("w", w.view(), dw.view()) == 0);
        CHECK(optimizer.register_parameter("v", v.view(), dv.view()) == 1);
        const float r = float(gpus.rank()), mean = float(gpus.size() - 1) / 2;
        for (int step = 0; step < 2; ++step) {
            s.write(dv, floats{r});
            optimizer.gradient_ready(1, s);
            CHECK(optimizer.buckets_started() == 0);
            other.write(dw, floats{2 * r, 4});
            optimizer.gradient_ready(0, other);
            CHECK(optimizer.buckets() == 1);
            CHECK(optimizer.buckets_started() == 1);
            CHECK_THROWS_AS(optimizer.zero_gradients(s), hvd::usage_error);
            optimizer.step(s);
            CHECK(optimizer.buckets_started() == 0);
            cudaStreamSynchronize(s);  // `other` writes the gradient that the step reads
        }
        CHECK(s.values(w) == floats{1 - 4 * mean, 2 - 8});
        CHECK(s.values(v) == floats{3 - 2 * mean});
    });
}

TEST_CASE(
    "frozen parameters stay, local ones keep their gradient, unreported ones count as zeros") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s;
        const tensor<float> w{1}, frozen{5}, local{10}, dw{8}, df{100}, dl{6};
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1});
        optimizer.register_parameter("w", w.view(), dw.view());
        optimizer.register_parameter("frozen", frozen.view(), df.view());
        optimizer.register_local("local", local.view(), dl.view());
        optimizer.freeze(1);
        CHECK_THROWS_AS(optimizer.freeze(7), hvd::usage_error);
        const float ranks = float(gpus.size());
        if (gpus.rank() == 0) optimizer.gradient_ready(0, s);
        else optimizer.nothing_ready();
        optimizer.step(s);
        CHECK(s.values(w) == floats{1 - 8 / ranks});
        CHECK(s.values(frozen) == floats{5});
        CHECK(s.values(local) == floats{10 - 6 / ranks});

        optimizer.unfreeze(1);
        optimizer.zero_gradients(s);
        s.write(df, floats{3});
        optimizer.step(s);
        CHECK(s.values(frozen) == floats{2});
        CHECK(s.values(w) == floats{1 - 8 / ranks});
        CHECK(optimizer.is_local(2));
        CHECK(optimizer.parameters().size() == 3);
        CHECK(optimizer.shared_parameters().size() == 2);
    });
}

TEST_CASE("a step with a gradient that is not finite on one rank is left out on all") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s;
        const tensor<float> w{1}, local{1}, dw{1}, dl{1};
        optimizers::adam<float> adam{.rate = 0.5f};
        hvd::distributed_optimizer optimizer(gpus, adam, {.skip_nonfinite = true});
        optimizer.register_parameter("w", w.view(), dw.view());
        optimizer.register_local("local", local.view(), dl.view());
        const bool last = gpus.rank() == gpus.size() - 1;
        s.write(dw, floats{last ? INFINITY : 1});
        s.write(dl, floats{1});
        optimizer.step(s);
        CHECK(s.values(w) == floats{1});
        CHECK(s.values(local) == floats{1});
        s.write(dw, floats{1});
        s.write(dl, floats{last ? NAN : 1});  // it does not travel, but counts
        optimizer.step(s);
        CHECK(s.values(w) == floats{1});
        CHECK(optimizer.skipped_steps(s) == 2);
        s.write(dw, floats{1});
        s.write(dl, floats{1});
        optimizer.step(s);
        CHECK(s.values(w)[0] == doctest::Approx(0.5));  // the first step of Adam
        CHECK(s.values(local)[0] == doctest::Approx(0.5));
    });
}

TEST_CASE("gradients can be changed between synchronize and apply, and dropped") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s;
        const tensor<float> w{1}, dw{1};
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1});
        optimizer.register_parameter("w", w.view(), dw.view());
        {
            auto gradients = optimizer.synchronize(s);
            CHECK(gradients.tensors().size() == 1);
            CHECK_THROWS_AS(optimizer.step(s), hvd::usage_error);
            s.write(dw, floats{3});
            optimizer.apply(std::move(gradients), s);
        }
        CHECK(s.values(w) == floats{-2});
        {
            const auto dropped = optimizer.synchronize(s);
        }
        CHECK(s.values(w) == floats{-2});
    });
}

namespace {

// An optimizer of the user's: w -= rate gradient, as work of the stream.
struct users_sgd {
    using value_type = float;
    using list = std::span<const hvd::tensor_view<float, hvd::device>>;
    float rate = 1;
    void step(list parameters, list gradients, cudaStream_t stream) {
        for (std::size_t i = 0; i < parameters.size(); ++i)
            emulation::enqueue(stream, [rate_ = rate, p = parameters[i], g = gradients[i]] {
                const auto seen = [](const auto& t) {
                    return reinterpret_cast<float*>(
                        emulation::seen_by_device(t.data(), t.size() * sizeof(float)));
                };
                for (std::size_t k = 0; k < p.size(); ++k) seen(p)[k] -= rate_ * seen(g)[k];
            });
    }
};

// One that holds its tensors itself, as LibTorch's do.
struct self_contained {
    int* steps;
    void step() { ++*steps; }
};

}  // namespace

TEST_CASE("optimizers of the user step on the device") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s;
        const tensor<float> w{1, 2}, dw{float(gpus.rank()), 1};
        hvd::distributed_optimizer optimizer(gpus, users_sgd{}, {.op = hvd::sum});
        optimizer.register_parameter("w", w.view(), dw.view());
        optimizer.step(s);
        const int n = gpus.size();
        CHECK(s.values(w) == floats{1 - float(n * (n - 1) / 2), 2 - float(n)});

        int steps = 0;
        hvd::distributed_optimizer other(gpus, self_contained{&steps});
        other.register_parameter("w", w.view(), dw.view());
        other.step(s);
        CHECK(steps == 1);
        CHECK_THROWS_AS(hvd::distributed_optimizer(gpus, users_sgd{}, {.skip_nonfinite = true}),
                        hvd::usage_error);
    });
}

TEST_CASE("sharded state is held once over all ranks") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s;
        const std::size_t n = std::size_t(gpus.size());
        const tensor<float> w(floats(48, 1)), dw(floats(48, float(gpus.rank())));
        hvd::distributed_optimizer optimizer(gpus, optimizers::adam<float>{},
                                             {.shard_state = true});
        optimizer.register_parameter("w", w.view(), dw.view());
        optimizer.step(s);
        CHECK(optimizer.state_bytes() == 2 * 48 * sizeof(float) / n);
        CHECK(s.values(dw) == floats(48, float(gpus.rank())));
    });
}

TEST_CASE("what the device has not is refused") {
    train_on<hvd::nccl>(2, 2, [](auto& world, auto& gpus) {
        using sgd = optimizers::sgd<float>;
        CHECK_THROWS_WITH_AS(hvd::distributed_optimizer(gpus, optimizers::sgd<double>{},
                                                        {.codec = hvd::codec::cast<hvd::float16>}),
                             doctest::Contains("is for gradients of float"), hvd::usage_error);
        CHECK_THROWS_WITH_AS(
            hvd::distributed_optimizer(
                gpus, sgd{}, {.codec = hvd::codec::cast<hvd::float16>, .shard_state = true}),
            doctest::Contains("shard_state is for averages and sums without a codec"),
            hvd::usage_error);
        int steps = 0;
        CHECK_THROWS_AS(
            hvd::distributed_optimizer(gpus, self_contained{&steps}, {.shard_state = true}),
            hvd::usage_error);
        CHECK_THROWS_WITH_AS(hvd::distributed_optimizer(world, sgd{}, {.shard_state = true}),
                             doctest::Contains("shard_state is for parameters on the device"),
                             hvd::usage_error);
        CHECK_THROWS_WITH_AS(
            hvd::distributed_optimizer(gpus, sgd{}, {.synchronize_buffers = true}),
            doctest::Contains("synchronize_buffers in each step is for buffers on the host"),
            hvd::usage_error);
        hvd::communicator<hvd::nccl> none;
        CHECK_THROWS_AS(hvd::distributed_optimizer(none, sgd{}), hvd::usage_error);
    });
}

TEST_CASE("ranges of tensors on the device are registered at once") {
    train_on<hvd::nccl>(2, 2, [](auto&, auto& gpus) {
        const stream s;
        const auto mine = float(gpus.rank());
        const tensor<float> v{1, 2}, w{3}, dv{mine, 1}, dw{2};
        const std::vector<hvd::tensor_view<float, hvd::device>> values = {v.view(), w.view()},
                                                                gradients = {dv.view(), dw.view()};
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1});
        CHECK(optimizer.register_parameters("layers", values, gradients) == 0);
        CHECK(optimizer.name(1) == "layers.1");
        optimizer.step(s);
        CHECK(s.values(v) == floats{0.5f, 1});
        CHECK(s.values(w) == floats{1});
    });
}

TEST_CASE("ranks with other options, parameters or rates get a mismatch and go on") {
    train_on_every_backend([](auto&, auto& gpus) {
        if (gpus.size() == 1) return;
        const stream s;
        const tensor<float> w{1}, dw{1};
        const float rate = gpus.rank() == 0 ? 0.5f : 1;
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = rate});
        optimizer.register_parameter("w", w.view(), dw.view());
        CHECK_THROWS_AS(optimizer.step(s), hvd::mismatch_error);
        optimizer.optimizer().rate = 1;
        s.write(dw, floats{1});
        optimizer.step(s);
        CHECK(s.values(w) == floats{0});

        hvd::distributed_optimizer other(gpus, optimizers::sgd<float>{.rate = 1});
        other.register_parameter(gpus.rank() == 0 ? "w" : "v", w.view(), dw.view());
        CHECK_THROWS_AS(other.step(s), hvd::mismatch_error);
    });
}

TEST_CASE("rows of a table on the device are averaged over the ranks") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s;
        const int r = gpus.rank(), n = gpus.size();
        for (const auto policy : {hvd::sparse_policy::gather, hvd::sparse_policy::dense,
                                  hvd::sparse_policy::automatic}) {
            const tensor<float> table(floats(10, 1)), gradient(floats(10, -1)), w{1}, dw{2};
            hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1},
                                                 {.backward_passes_per_step = 2});
            const auto t =
                optimizer.register_sparse("table", table.view(), gradient.view(), 2, policy);
            optimizer.register_parameter("w", w.view(), dw.view());
            const tensor<std::int64_t> rows{0, r % 4 + 1, 0}, again{4};
            const tensor<float> values(floats(6, -7)), more{1, 1};
            s.write(values, floats{1, 2, float(10 * r), 1, 3, 4});
            optimizer.gradient_ready(
                t, hvd::sparse_view<float, hvd::device>{rows.view(), values.view()}, s);
            optimizer.gradient_ready(1, s);
            s.write(values, floats(6, 50));  // the rows are copied
            optimizer.gradient_ready(
                t, hvd::sparse_view<float, hvd::device>{again.view(), more.view()}, s);
            optimizer.gradient_ready(1, s);
            optimizer.step(s);
            floats expected(10, 1);
            expected[0] -= 4, expected[1] -= 6, expected[8] -= 1, expected[9] -= 1;
            for (int p = 0; p < n; ++p) {
                expected[std::size_t(2 * (p % 4 + 1))] -= float(10 * p) / float(n);
                expected[std::size_t(2 * (p % 4 + 1) + 1)] -= 1 / float(n);
            }
            const floats got = s.values(table);
            for (std::size_t i = 0; i < 10; ++i)
                CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-5));
            CHECK(s.values(w) == floats{-1});
        }
        const tensor<std::int64_t> wrong{r == 0 ? 5 : 1};
        const tensor<float> one{1, 1}, table(floats(10, 3)), short_values{1};
        {
            hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{});
            optimizer.register_sparse("table", table.view(), tensor<float>(floats(10)).view(), 2);
            CHECK_THROWS_AS(
                optimizer.gradient_ready(
                    0, hvd::sparse_view<float, hvd::device>{wrong.view(), short_values.view()}, s),
                hvd::usage_error);
        }
        const auto reduce = [&] {
            hvd::sparse_allreduce(gpus,
                                  hvd::sparse_view<float, hvd::device>{wrong.view(), one.view()},
                                  hvd::into(table.view()), 2, {}, s);
        };
        if (r == 0) CHECK_THROWS_AS(reduce(), hvd::usage_error);
        else CHECK_THROWS_AS(reduce(), hvd::peer_error);
    });
}

TEST_CASE("an optimizer's state on the device is broadcast, saved and loaded, also by the host") {
    const hvd_test::temporary_directory folder;
    const std::string path = (folder / "state.safetensors").string();
    const auto check = [&](auto& world, auto& gpus, bool sharded) {
        const stream s;
        const float r = float(gpus.rank());
        const tensor<float> w{1, 2 + r}, v{r}, dw{1, r}, dv{2};
        hvd::distributed_optimizer optimizer(gpus, optimizers::adam<float>{.rate = 0.25f},
                                             {.shard_state = sharded});
        optimizer.register_parameter("w", w.view(), dw.view());
        optimizer.register_parameter("v", v.view(), dv.view());
        optimizer.step(s);
        hvd::broadcast_parameters(optimizer);
        hvd::compare_parameters(optimizer);
        hvd::broadcast_optimizer_state(optimizer);
        CHECK(optimizer.optimizer().mean.empty());
        hvd::save_checkpoint(path, optimizer, {.step = 1});
        s.write(dw, floats{1, 1});
        s.write(dv, floats{-1});
        optimizer.step(s);
        const floats went_on = s.values(w), v_went_on = s.values(v);
        s.write(w, floats{0, 0});
        CHECK(hvd::load_checkpoint(path, optimizer).step == 1);
        s.write(dw, floats{1, 1});
        s.write(dv, floats{-1});
        optimizer.step(s);
        CHECK(s.values(w) == went_on);
        CHECK(s.values(v) == v_went_on);

        std::vector<float> hw(2), hv(1), hdw = {1, 1}, hdv = {-1};
        hvd::distributed_optimizer on_host(world, optimizers::adam<float>{});
        on_host.register_parameter("w", hw, hdw);
        on_host.register_parameter("v", hv, hdv);
        hvd::load_checkpoint(path, on_host);
        CHECK(on_host.optimizer().steps.of(0) == 1);
        CHECK(on_host.optimizer().rate == 0.25f);
        on_host.step();
        for (std::size_t i = 0; i < 2; ++i) CHECK(hw[i] == doctest::Approx(went_on[i]));
        CHECK(hv[0] == doctest::Approx(v_went_on[0]));

        if (gpus.size() == 1) return;
        s.write(w, floats{r, 0});
        CHECK_THROWS_AS(hvd::compare_parameters(optimizer), hvd::mismatch_error);
        CHECK_THROWS_AS(hvd::load_checkpoint(path + ".none", optimizer), hvd::checkpoint_error);
        CHECK(s.values(w) == floats{r, 0});
    };
    train_on_every_backend([&](auto& world, auto& gpus) {
        for (const bool sharded : {false, true}) check(world, gpus, sharded);
    });
}

TEST_CASE("gradients in no bucket are read after the streams that wrote them") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s, other;
        const tensor<float> local{10}, w{1}, dl{-100}, dw{-100};
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1},
                                             {.scale_local_gradients = false});
        optimizer.register_local("local", local.view(), dl.view());
        optimizer.register_parameter("w", w.view(), dw.view());
        const float r = float(gpus.rank()), mean = float(gpus.size() - 1) / 2;
        for (int step = 1; step <= 3; ++step) {
            emulation::enqueue(other, [] { std::this_thread::sleep_for(5ms); });
            other.write(dl, floats{r});
            optimizer.gradient_ready(0, other);
            CHECK_THROWS_AS(optimizer.register_parameter("x", dl.view(), w.view()),
                            hvd::usage_error);
            s.write(dw, floats{r});
            optimizer.gradient_ready(1, s);
            optimizer.step(s);
            CHECK(s.values(local) == floats{10 - float(step) * r});
            CHECK(s.values(w) == floats{1 - float(step) * mean});
        }
    });
}

TEST_CASE("state is read after the stream of apply(), and an optimizer brings its state along") {
    train_on_every_backend([](auto& world, auto& gpus) {
        const stream s, other;
        const tensor<float> w{1, 2}, dw{0, 0};
        using adam = optimizers::adam<float>;
        std::vector<float> on_host{1, 2}, gradient{float(world.rank()), 1};
        hvd::distributed_optimizer reference(world, adam{.rate = 0.125f});
        reference.register_parameter("w", on_host, gradient);
        for (int step = 0; step < 3; ++step) reference.step();
        gradient = {float(world.rank()), 1};
        {
            hvd::distributed_optimizer copy(gpus, adam(reference.optimizer()));
            copy.register_parameter("w", w.view(), dw.view());
            s.write(w, on_host);
            s.write(dw, gradient);
            auto gradients = copy.synchronize(s);
            cudaStreamSynchronize(s);
            emulation::enqueue(other, [] { std::this_thread::sleep_for(5ms); });
            copy.apply(std::move(gradients), other);
            reference.step();
            copy.with_state_on_host(hvd::detail::state_use::read, [&](auto&) {
                CHECK(copy.optimizer().steps.of(0) == reference.optimizer().steps.of(0));
                copy.optimizer().for_each_slot([&](const char* name, auto& slots) {
                    reference.optimizer().for_each_slot(
                        [&](const char* other_name, auto& expected) {
                            if (std::string(name) == other_name)
                                for (std::size_t k = 0; k < expected[0].size(); ++k)
                                    CHECK(slots[0].at(k) == doctest::Approx(expected[0][k]));
                        });
                });
            });
        }
        const auto values = other.values(w);
        for (std::size_t k = 0; k < 2; ++k) CHECK(values[k] == doctest::Approx(on_host[k]));
    });
}

TEST_CASE("a momentum that begins later has its velocity then, and one that stops keeps it") {
    train_on_every_backend([](auto& world, auto& gpus) {
        const stream s;
        const tensor<float> w{1}, dw{0};
        std::vector<float> on_host{1}, gradient{0};
        hvd::distributed_optimizer there(gpus, optimizers::sgd<float>{.rate = 0.5f});
        hvd::distributed_optimizer here(world, optimizers::sgd<float>{.rate = 0.5f});
        there.register_parameter("w", w.view(), dw.view());
        here.register_parameter("w", on_host, gradient);
        const float mean = float(world.size() - 1) / 2;
        float value = 1, velocity = 0;
        for (int step = 0; step < 8; ++step) {
            const float momentum = step % 4 < 2 ? 0.0f : 0.5f;
            there.optimizer().momentum = here.optimizer().momentum = momentum;
            gradient[0] = float(world.rank() + step);
            s.write(dw, gradient);
            there.step(s);
            here.step();
            if (momentum != 0) velocity = momentum * velocity + mean + float(step);
            value -= 0.5f * (momentum != 0 ? velocity : mean + float(step));
            CHECK(s.values(w)[0] == doctest::Approx(value));
            CHECK(on_host[0] == doctest::Approx(value));
            CHECK(here.optimizer().velocity.empty() == (step < 2));
        }
    });
}

TEST_CASE("calls that need the host are refused on a stream under capture") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s;
        const tensor<float> w{float(gpus.rank())};
        const std::vector<hvd::tensor_view<float, hvd::device>> list{w.view()};
        cudaGraph_t graph{};
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
        CHECK_THROWS_AS(hvd::broadcast_parameters(gpus, list, hvd::root{0}, s), hvd::usage_error);
        CHECK_THROWS_AS(hvd::distributed_gradients(gpus, list, {}, s), hvd::usage_error);
        CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
        cudaGraphDestroy(graph);
        hvd::broadcast_parameters(gpus, list, hvd::root{gpus.size() - 1}, s);
        CHECK(s.values(w) == floats{float(gpus.size() - 1)});
    });
}

TEST_CASE("memory that is not there is refused where it is registered") {
    train_on_every_backend([](auto&, auto& gpus) {
        const tensor<float> w{1, 2};
        const auto nothing = hvd::device_view(static_cast<float*>(nullptr), 2);
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{});
        CHECK_THROWS_WITH_AS(optimizer.register_parameter("w", w.view(), nothing),
                             doctest::Contains("\"w\": null pointer with 2 elements"),
                             hvd::usage_error);
        CHECK_THROWS_AS(optimizer.register_local("w", nothing, w.view()), hvd::usage_error);
        CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains("there is no parameter"),
                             hvd::usage_error);
    });
}

}  // namespace device_steps_tests
