// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// A trainer whose tensors are on the device makes the model that the host's trainer makes.

#include <hvd/checkpoint.hpp>

#include "device_model.hpp"
#include "temporary_directory.hpp"

namespace device_optimizer_tests {

using namespace device_test;
namespace optimizers = hvd::optimizers;

namespace {

constexpr int steps = 4;

template <class T, class Optimizer>
std::vector<std::vector<T>> trained_on_host(hvd::communicator<host>& world,
                                            const Optimizer& optimizer,
                                            hvd::optimizer_options options) {
    host_model<T> model;
    options.shard_state = false;  // which changes no number
    hvd::distributed_optimizer distributed(world, optimizer, options);
    model.register_with(distributed);
    for (int step = 0; step < steps; ++step) {
        distributed.zero_gradients();
        for (int pass = 0; pass < options.backward_passes_per_step; ++pass)
            for (std::size_t i = model.sizes.size(); i-- > 0;)
                model.backward(i, world.rank(), step, pass);
        distributed.step();
    }
    return model.value;
}

// Trains on the device. `overlap` reports each gradient as soon as the stream has its work.
template <class T, class Comm, class Optimizer>
std::vector<std::vector<T>> trained_on_device(Comm& gpus, const Optimizer& optimizer,
                                              const hvd::optimizer_options& options, bool overlap) {
    const auto make_step = [&](auto& distributed, auto& model, const stream& s, int step) {
        for (int pass = 0; pass < options.backward_passes_per_step; ++pass)
            for (std::size_t i = model.sizes.size(); i-- > 0;) {
                model.backward(s, i, gpus.rank(), step, pass);
                if (overlap) distributed.gradient_ready(i, s);
            }
        distributed.step(s);
    };
    return trained_by<T>(gpus, optimizer, options, steps, make_step);
}

template <class T, class Optimizer>
void check_equals_host(hvd::communicator<host>& world, auto& gpus, const Optimizer& optimizer,
                       const hvd::optimizer_options& options, double tolerance) {
    const auto expected = trained_on_host<T>(world, optimizer, options);
    for (const bool overlap : {false, true}) {
        CAPTURE(overlap);
        CHECK(difference(trained_on_device<T>(gpus, optimizer, options, overlap), expected) <=
              tolerance);
    }
}

// Runs f(world, gpus, sharded, stream, w, dw) with a parameter and a gradient of ones in 16 bits.
template <class F>
void with_ones_of_16_bits(F f) {
    train_on_every_backend([&](auto& world, auto& gpus) {
        using T = hvd::bfloat16;
        for (const bool sharded : {false, true}) {
            const stream s;
            const tensor<T> w(std::vector<T>(20, T(1.0f))), dw(std::vector<T>(20, T(1.0f)));
            f(world, gpus, sharded, s, w, dw);
            world.barrier();
        }
    });
}

}  // namespace

// The other tests train on every backend. The optimizer does not know it.
TEST_CASE("each of hvd's optimizers trains on the device as on the host") {
    const auto train = [](auto& world, auto& gpus) {
        check_equals_host<float>(world, gpus, optimizers::sgd<float>{.rate = 0.125f}, {}, 1e-5);
        check_equals_host<float>(world, gpus, optimizers::sgd<float>{0.125f, 0.25f}, {}, 1e-5);
        check_equals_host<float>(
            world, gpus, optimizers::sgd<float>{.rate = 0.125f, .momentum = 0.9f}, {}, 1e-5);
        check_equals_host<float>(
            world, gpus,
            optimizers::sgd<float>{
                .rate = 0.125f, .momentum = 0.9f, .nesterov = true, .weight_decay = 0.25f},
            {}, 1e-5);
        check_equals_host<float>(world, gpus, optimizers::adam<float>{.rate = 0.01f}, {}, 1e-5);
        check_equals_host<float>(
            world, gpus, optimizers::adamw<float>{.rate = 0.01f, .weight_decay = 0.1f}, {}, 1e-5);
        check_equals_host<double>(world, gpus, optimizers::adam<double>{.rate = 0.01}, {}, 1e-6);
    };
    for (int ranks = 1; ranks <= 4; ++ranks) train_on<hvd::nccl>(ranks, ranks, train);
}

TEST_CASE("16-bit parameters train on the device as on the host") {
    train_on_every_backend([](auto& world, auto& gpus) {
        check_equals_host<hvd::bfloat16>(
            world, gpus, optimizers::sgd<hvd::bfloat16>{.momentum = 0.9f}, {}, 0.05);
    });
}

TEST_CASE("masters in float train on the device as on the host, also in slices") {
    using masters = optimizers::float_masters<hvd::bfloat16, optimizers::sgd<float>>;
    train_on_every_backend([](auto& world, auto& gpus) {
        for (const bool sharded : {false, true})
            check_equals_host<hvd::bfloat16>(world, gpus,
                                             masters{{.momentum = 0.9f, .nesterov = true}},
                                             {.shard_state = sharded}, 0.05);
    });
}

TEST_CASE("steps that 16 bits lose arrive with masters on the device, which go on after a freeze") {
    using T = hvd::bfloat16;
    using masters = optimizers::float_masters<T, optimizers::adam<float>>;
    const hvd_test::temporary_directory folder;
    const std::string path = (folder / "state.safetensors").string();
    with_ones_of_16_bits(
        [&](auto&, auto& gpus, bool sharded, const stream& s, const auto& w, const auto& dw) {
            // With equal gradients Adam steps by the rate.
            hvd::distributed_optimizer first(gpus, masters{{.rate = 1.0f / 1024}},
                                             {.shard_state = sharded}),
                second(gpus, masters{{.rate = 1.0f / 1024}}, {.shard_state = sharded});
            first.register_parameter("w", w.view(), dw.view());
            second.register_parameter("w", w.view(), dw.view());
            for (int step = 0; step < 8; ++step) first.step(s);
            hvd::save_checkpoint(path, first, {});
            hvd::load_checkpoint(path, second);
            second.freeze(0);
            second.step(s);
            second.unfreeze(0);
            for (int step = 0; step < 8; ++step) second.step(s);
            for (const T x : s.values(w)) CHECK(float(x) == doctest::Approx(1 - 1.0f / 64));
        });
}

TEST_CASE("state that a checkpoint has not begins anew, masters with the parameters") {
    using T = hvd::bfloat16;
    using masters = optimizers::float_masters<T, optimizers::sgd<float>>;
    const hvd_test::temporary_directory folder;
    const std::string path = (folder / "state.safetensors").string();
    with_ones_of_16_bits(
        [&](auto&, auto& gpus, bool sharded, const stream& s, const auto& w, const auto& dw) {
            hvd::distributed_optimizer optimizer(gpus, masters{{.rate = 0.5f, .momentum = 0.5f}},
                                                 {.shard_state = sharded});
            optimizer.register_parameter("w", w.view(), dw.view());
            hvd::save_checkpoint(path, optimizer, {});
            for (int again = 0; again < 2; ++again) {
                optimizer.step(s);
                optimizer.step(s);
                for (const T x : s.values(w)) CHECK(float(x) == -0.25f);
                hvd::load_checkpoint(path, optimizer);
                for (const T x : s.values(w)) CHECK(float(x) == 1);
            }
        });
}

TEST_CASE("a parameter that is unfrozen steps by its own count, also after a checkpoint") {
    const hvd_test::temporary_directory folder;
    const std::string path = (folder / "state.safetensors").string();
    train_on_every_backend([&](auto& world, auto& gpus) {
        const auto check = [&](const auto& inside, bool sharded) {
            using T = typename std::remove_cvref_t<decltype(inside)>::value_type;
            const stream s;
            const hvd::optimizer_options options{.shard_state = sharded};
            // Some ranks have no slice of the second parameter.
            const tensor<T> w(std::vector<T>(20, T(1.0f))), dw(std::vector<T>(20, T(0.0f)));
            const tensor<T> v(std::vector<T>(3, T(1.0f))), dv(std::vector<T>(3, T(0.0f)));
            std::vector<T> hw(20, T(1.0f)), hdw(20), hv(3, T(1.0f)), hdv(3);
            hvd::distributed_optimizer on_host(world, inside);
            hvd::distributed_optimizer again(gpus, inside, options);
            hvd::distributed_optimizer optimizer(gpus, inside, options);
            const auto each = [&](auto f) {
                f(optimizer);
                f(again);
            };
            each([&](auto& o) {
                o.register_parameter("w", w.view(), dw.view());
                o.register_parameter("v", v.view(), dv.view());
            });
            on_host.register_parameter("w", hw, hdw);
            on_host.register_parameter("v", hv, hdv);
            optimizer.freeze(1);
            on_host.freeze(1);
            for (int step = 0; step < 10; ++step) {
                if (step == 5) optimizer.unfreeze(1), on_host.unfreeze(1);
                if (step == 8) {
                    hvd::save_checkpoint(path, optimizer, {});
                    hvd::load_checkpoint(path, again);
                }
                const float g = float(1 + step % 3) + float(gpus.rank());
                s.write(dw, std::vector<T>(20, T(g)));
                s.write(dv, std::vector<T>(3, T(g)));
                hdw.assign(20, T(g));
                hdv.assign(3, T(g));
                if (step < 8) optimizer.step(s);
                else again.step(s);
                on_host.step();
                CHECK(float(s.values(w)[19]) == doctest::Approx(float(hw[19])).epsilon(0.01));
                CHECK(float(s.values(v)[2]) == doctest::Approx(float(hv[2])).epsilon(0.01));
            }
            again.with_state_on_host(hvd::detail::state_use::read, [&](auto&) {
                CHECK(again.optimizer().steps.of(0) == 10);
                CHECK(again.optimizer().steps.of(1) == 5);
            });
            world.barrier();
        };
        for (const bool sharded : {false, true}) {
            check(optimizers::adam<float>{.rate = 0.125f}, sharded);
            check(
                optimizers::float_masters<hvd::bfloat16, optimizers::adam<float>>{{.rate = 0.125f}},
                sharded);
        }
    });
}

TEST_CASE("local parameters on the device are in checkpoints, and a model is loaded alone") {
    const hvd_test::temporary_directory folder;
    const std::string path = (folder / "state").string(), model = (folder / "model").string();
    train_on_every_backend([&](auto& world, auto& gpus) {
        for (const bool sharded : {false, true}) {
            const stream s;
            const float r = float(gpus.rank());
            const tensor<float> own(std::vector<float>(5, r)), d_own(std::vector<float>(5, 1 + r));
            const tensor<float> w(std::vector<float>(9, 1)), dw(std::vector<float>(9, 1));
            hvd::distributed_optimizer optimizer(gpus, optimizers::adam<float>{.rate = 0.25f},
                                                 {.shard_state = sharded});
            optimizer.register_local("own", own.view(), d_own.view());
            optimizer.register_parameter("w", w.view(), dw.view());
            s.write(d_own, std::vector<float>(5, 1 + r));
            optimizer.step(s);
            const auto own_before = s.values(own), w_before = s.values(w);
            hvd::save_checkpoint(path, optimizer, {});
            hvd::save_model(model, optimizer);
            s.write(d_own, std::vector<float>(5, -1 - r));
            optimizer.step(s);
            const auto own_after = s.values(own), w_after = s.values(w);
            hvd::load_checkpoint(path, optimizer);
            CHECK(s.values(own) == own_before);
            CHECK(s.values(w) == w_before);
            s.write(d_own, std::vector<float>(5, -1 - r));
            optimizer.step(s);
            CHECK(s.values(own) == own_after);
            CHECK(s.values(w) == w_after);
            hvd::load_model(model, optimizer);
            CHECK(s.values(own) == own_after);
            CHECK(s.values(w) == w_before);
            world.barrier();
        }
    });
}

TEST_CASE("options of the gradients mean on the device what they mean on the host") {
    train_on_every_backend([](auto& world, auto& gpus) {
        const optimizers::sgd<float> optimizer{.rate = 0.125f, .momentum = 0.9f};
        for (const hvd::optimizer_options& options : std::vector<hvd::optimizer_options>{
                 {.op = hvd::sum},
                 {.bucket_bytes = 1},
                 {.groups = {{0, 3}}},
                 {.backward_passes_per_step = 2},
                 {.backward_passes_per_step = 2, .average_passes = true},
                 {.gradient_predivide_factor = 4},
                 {.skip_nonfinite = true},
                 {.shard_state = true},
                 {.bucket_bytes = 64,
                  .backward_passes_per_step = 2,
                  .skip_nonfinite = true,
                  .shard_state = true},
                 {.op = hvd::adasum}})
            check_equals_host<float>(world, gpus, optimizer, options, 2e-5);
        for (const auto codec : std::initializer_list<hvd::gradient_codec>{
                 hvd::codec::cast<hvd::float16>, hvd::codec::cast<hvd::bfloat16>})
            check_equals_host<float>(world, gpus, optimizer, {.codec = codec}, 0.02);
    });
}

}  // namespace device_optimizer_tests
