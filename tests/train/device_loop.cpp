// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Things of the loop around the steps, with parameters on the device.

#include <hvd/checkpoint.hpp>

#include "device_support.hpp"
#include "temporary_directory.hpp"

namespace device_loop_tests {

using namespace device_test;
namespace optimizers = hvd::optimizers;
using floats = std::vector<float>;

namespace {

// True if the ranks compare their reductions of gradients.
template <class Comm>
bool compares(Comm& gpus, hvd::detail::collective kind) {
    return hvd::detail::device_access::session_of(gpus)->compares(kind);
}

template <class F>
void check_epochs_are_named(F f) {
    try {
        f();
        FAIL("a step with ranks in different epochs");
    } catch (const hvd::mismatch_error& e) {
        const std::string what = e.what();
        CHECK(what.find("epoch 7") != std::string::npos);
        CHECK(what.find("epoch 8") != std::string::npos);
    }
}

}  // namespace

TEST_CASE("ranks in different epochs are told so where they compare reductions, and go on") {
    using hvd::detail::collective;
    const std::vector<hvd::optimizer_options> kinds = {
        {},
        {.shard_state = true},
        {.codec = hvd::codec::cast<hvd::bfloat16>},
        {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)},
        {.op = hvd::adasum}};
    for (const auto& options : kinds)
        train_on_every_backend([&](auto& world, auto& gpus) {
            const bool adasum = options.op == hvd::adasum;
            const stream s;
            const tensor<float> w(floats(48, 8)), dw(floats(48, 1));
            hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1}, options);
            optimizer.register_parameter("w", w.view(), dw.view());
            optimizer.begin_epoch(7);
            optimizer.step(s);
            s.write(dw, floats(48, 1));
            optimizer.step(s);
            CHECK(s.values(w) == floats(48, 6));
            s.write(dw, floats(48, 1));
            const auto kind = options.shard_state || options.codec.keeps_residual()
                                  ? collective::reduce_scatter
                                  : collective::allreduce;
            if (gpus.size() > 1 && (adasum || compares(gpus, kind))) {
                if (gpus.rank() > 0) optimizer.begin_epoch(8);
                check_epochs_are_named([&] { optimizer.step(s); });
                CHECK(s.values(w) == floats(48, 6));
            }
            optimizer.begin_epoch(9);
            s.write(dw, floats(48, 1));
            optimizer.step(s);
            CHECK(s.values(w) == floats(48, 5));
            world.barrier();
        });
}

TEST_CASE("ranks in different epochs are told so on every backend if gradients come in rows") {
    train_on_every_backend([](auto& world, auto& gpus) {
        const stream s;
        const tensor<float> w(floats(12, 8)), dw(floats(12)), values{1, 2, 3, 4, 5, 6};
        const tensor<std::int64_t> indices{1, 3};
        cudaDeviceSynchronize();
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1});
        optimizer.register_sparse("w", w.view(), dw.view(), 3);
        const auto step = [&] {
            optimizer.gradient_ready(
                0, hvd::sparse_view<float, hvd::device>{indices.view(), values.view()}, s);
            optimizer.step(s);
        };
        optimizer.begin_epoch(7);
        step();
        CHECK(s.values(w)[3] == 7);
        if (gpus.size() > 1) {
            if (gpus.rank() > 0) optimizer.begin_epoch(8);
            check_epochs_are_named(step);
            optimizer.begin_epoch(9);
        }
        step();
        CHECK(s.values(w)[3] == 6);
        world.barrier();
    });
}

TEST_CASE("a scaled loss trains to the same bits on the device, clipped or not") {
    for (const bool sharded : {false, true})
        for (const bool clips : {false, true})
            train_on_every_backend([=](auto& world, auto& gpus) {
                const auto trained = [&](double value) {
                    const stream s;
                    const tensor<float> w(floats(40, 8)), dw(floats(40)), own{4}, d_own{0};
                    cudaDeviceSynchronize();
                    hvd::distributed_optimizer optimizer(
                        gpus, optimizers::sgd<float>{.rate = 0.25f, .momentum = 0.9f},
                        {.skip_nonfinite = true, .shard_state = sharded});
                    optimizer.register_parameter("w", w.view(), dw.view());
                    optimizer.register_local("own", own.view(), d_own.view());
                    hvd::loss_scale scale{.value = value, .interval = 2};
                    if (value == 1) scale.growth = 1;
                    for (int step = 0; step < 5; ++step) {
                        s.write(dw, floats(40, float(scale.value * (gpus.rank() + step))));
                        s.write(d_own, floats(1, float(scale.value)));
                        auto gradients = optimizer.synchronize(s);
                        scale.unscale(gradients);
                        if (clips) hvd::clip_by_norm(gradients, 1.0);
                        optimizer.apply(std::move(gradients), s);
                        CHECK(scale.update(optimizer.has_stepped(s)));
                    }
                    const double mean = (gpus.size() - 1) / 2.0 + 4;
                    if (clips)
                        CHECK(optimizer.gradient_norm(s) ==
                              doctest::Approx(mean * std::sqrt(40.0)));
                    CHECK(scale.value == (value == 1 ? 1 : 4 * value));
                    floats all = s.values(w);
                    all.push_back(s.values(own)[0]);
                    return all;
                };
                CHECK(trained(1) == trained(1024));
                world.barrier();
            });
}

TEST_CASE("an overflow on one rank's device leaves the step out on all and lowers the scale") {
    train_on_every_backend([](auto& world, auto& gpus) {
        const stream s;
        const tensor<float> w(floats(40, 8)), dw(floats(40));
        cudaDeviceSynchronize();
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1},
                                             {.skip_nonfinite = true});
        optimizer.register_parameter("w", w.view(), dw.view());
        hvd::loss_scale scale{.value = 1024};
        const auto step = [&](float gradient) {
            s.write(dw, floats(40, gradient * float(scale.value)));
            return scale.step(optimizer, cudaStream_t(s));
        };
        CHECK(step(1));
        CHECK_FALSE(step(gpus.rank() == gpus.size() - 1 ? INFINITY : 1));
        CHECK(scale.value == 512);
        CHECK_FALSE(step(gpus.rank() == 0 ? NAN : 1));
        CHECK(scale.value == 256);
        CHECK(step(1));
        CHECK(scale.good_steps == 1);
        CHECK(s.values(w) == floats(40, 6));
        CHECK(optimizer.skipped_steps(s) == 2);
        hvd::distributed_optimizer careless(gpus, optimizers::sgd<float>{.rate = 1});
        careless.register_parameter("w", w.view(), dw.view());
        CHECK_THROWS_WITH_AS(scale.step(careless, cudaStream_t(s)),
                             doctest::Contains(".skip_nonfinite = true"), hvd::usage_error);
        world.barrier();
    });
}

TEST_CASE("16-bit parameters on the device are trained by gradients that vanish in 16 bits") {
    using half = hvd::float16;
    using masters = optimizers::float_masters<half, optimizers::sgd<float>>;
    train_on_every_backend([](auto& world, auto& gpus) {
        const auto trained = [&](double value) {
            const stream s;
            const tensor<half> w(std::vector<half>(9, half(0.0f))),
                dw(std::vector<half>(9, half(0.0f)));
            cudaDeviceSynchronize();
            hvd::distributed_optimizer optimizer(gpus, masters{{.rate = 1024}},
                                                 {.skip_nonfinite = true});
            optimizer.register_parameter("w", w.view(), dw.view());
            hvd::loss_scale scale{.value = value};
            for (int step = 0; step < 4; ++step) {
                const double gradient = 0x1p-27 * (gpus.rank() + 1);
                s.write(dw, std::vector<half>(9, half(float(gradient * scale.value))));
                CHECK(scale.step(optimizer, cudaStream_t(s)));
            }
            return double(float(s.values(w)[8]));
        };
        CHECK(trained(1) == 0);
        CHECK(trained(65536) == doctest::Approx(-0x1p-15 * (gpus.size() + 1) / 2).epsilon(2e-3));
        world.barrier();
    });
}

TEST_CASE("buffers on the device become equal as their policies say") {
    train_on_every_backend([](auto& world, auto& gpus) {
        const stream s;
        const float rank = float(gpus.rank());
        const tensor<float> w{1}, dw{0}, mean{rank, rank}, sent{10 + rank};
        const tensor<double> averaged(std::vector<double>(3, gpus.rank() * 0.5));
        cudaDeviceSynchronize();
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1});
        optimizer.register_parameter("w", w.view(), dw.view());
        optimizer.register_buffer("mean", mean.view());
        optimizer.register_buffer("sent", sent.view(), hvd::buffer_policy::from_root);
        optimizer.register_buffer("averaged", averaged.view());
        const int last = gpus.size() - 1;
        hvd::synchronize_buffers(optimizer, hvd::root{last}, s);
        CHECK(s.values(mean) == floats(2, float(last) / 2));
        CHECK(s.values(averaged) == std::vector<double>(3, last / 4.0));
        CHECK(s.values(sent) == floats(1, float(10 + last)));
        s.write(mean, floats(2, rank));
        s.write(averaged, std::vector<double>(3, gpus.rank()));
        hvd::broadcast_parameters(optimizer, hvd::root{last}, s);
        CHECK(s.values(mean) == floats(2, float(last)));
        CHECK(s.values(averaged) == std::vector<double>(3, last));
        world.barrier();
    });
}

TEST_CASE("a checkpoint has the buffers on the device, and gives them to all ranks") {
    const hvd_test::temporary_directory folder;
    const std::string path = (folder / "checkpoint").string();
    train_on_every_backend([&](auto& world, auto& gpus) {
        const stream s;
        const tensor<float> w{1}, dw{0}, mean(floats(2, float(gpus.rank())));
        const tensor<double> variance(std::vector<double>(3, gpus.rank() + 0.5));
        cudaDeviceSynchronize();
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1});
        optimizer.register_parameter("w", w.view(), dw.view());
        optimizer.register_buffer("mean", mean.view());
        optimizer.register_buffer("variance", variance.view());
        optimizer.step(s);
        hvd::save_checkpoint(path, optimizer, {});
        s.write(mean, floats(2, 9));
        s.write(variance, std::vector<double>(3, 9));
        hvd::load_checkpoint(path, optimizer);
        CHECK(s.values(mean) == floats(2, 0));
        CHECK(s.values(variance) == std::vector<double>(3, 0.5));
        world.barrier();
    });
}

}  // namespace device_loop_tests
