// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Gradients on the device are clipped by the norm that they have on the host.

#include "device_model.hpp"

namespace device_clip_tests {

using namespace device_test;
namespace optimizers = hvd::optimizers;
using floats = std::vector<float>;

namespace {

constexpr int steps = 4;

template <class T, class Optimizer>
std::vector<std::vector<T>> trained_on_host(hvd::communicator<host>& world,
                                            const Optimizer& optimizer,
                                            hvd::optimizer_options options, double largest) {
    host_model<T> model;
    options.shard_state = false;
    hvd::distributed_optimizer distributed(world, optimizer, options);
    model.register_with(distributed);
    for (int step = 0; step < steps; ++step) {
        distributed.zero_gradients();
        for (std::size_t i = model.sizes.size(); i-- > 0;) model.backward(i, world.rank(), step, 0);
        auto gradients = distributed.synchronize();
        if (step != 2) hvd::clip_by_norm(gradients, largest);
        distributed.apply(std::move(gradients));
    }
    return model.value;
}

template <class T, class Comm, class Optimizer>
std::vector<std::vector<T>> trained_on_device(Comm& gpus, const Optimizer& optimizer,
                                              const hvd::optimizer_options& options,
                                              double largest) {
    const auto make_step = [&](auto& distributed, auto& model, const stream& s, int step) {
        for (std::size_t i = model.sizes.size(); i-- > 0;)
            model.backward(s, i, gpus.rank(), step, 0);
        auto gradients = distributed.synchronize(s);
        if (step != 2) hvd::clip_by_norm(gradients, largest);
        distributed.apply(std::move(gradients), s);
    };
    return trained_by<T>(gpus, optimizer, options, steps, make_step);
}

}  // namespace

// The norm of the model's gradients is some 20.
TEST_CASE("clipped steps on the device are those on the host") {
    train_on_every_backend([](auto& world, auto& gpus) {
        const auto check = [&]<class T>(const auto& optimizer,
                                        const hvd::optimizer_options& options, T,
                                        double tolerance) {
            for (const double largest : {0.0, 2.0, 1000.0}) {
                CAPTURE(largest);
                CHECK(difference(trained_on_device<T>(gpus, optimizer, options, largest),
                                 trained_on_host<T>(world, optimizer, options, largest)) <=
                      tolerance);
            }
        };
        const optimizers::sgd<float> momentum{.rate = 0.125f, .momentum = 0.9f};
        for (const hvd::optimizer_options& options : std::vector<hvd::optimizer_options>{
                 {}, {.skip_nonfinite = true}, {.bucket_bytes = 64, .shard_state = true}})
            check(momentum, options, 0.0f, 2e-5);
        check(optimizers::sgd<double>{0.125}, {.shard_state = true}, 0.0, 1e-12);
        check(optimizers::sgd<hvd::bfloat16>{0.125f}, {}, hvd::bfloat16(0.0f), 0.02);
    });
}

TEST_CASE("the norm has every gradient once, but local ones, which stay as they are") {
    train_on_every_backend([](auto& world, auto& gpus) {
        for (const bool sharded : {false, true}) {
            const stream s;
            const int rank = world.rank(), size = world.size();
            const tensor<float> a(floats(5, 0)), own(floats(2, 0)), table(floats(6, 0)),
                frozen(floats(2, 0)), da(floats(5, float(2 * rank))),
                d_own(floats(2, float(rank + 1))), d_table(floats(6, 0)), d_frozen(floats(2, 100)),
                row(floats{3, 4});
            const tensor<std::int64_t> index(std::vector<std::int64_t>{1});
            hvd::distributed_optimizer optimizer(
                gpus, optimizers::sgd<float>{1},
                {.scale_local_gradients = false, .shard_state = sharded});
            optimizer.register_parameter("a", a.view(), da.view());
            optimizer.register_local("own", own.view(), d_own.view());
            const auto words = optimizer.register_sparse("words", table.view(), d_table.view(), 2);
            optimizer.freeze(optimizer.register_parameter("f", frozen.view(), d_frozen.view()));
            const hvd::sparse_view<float, hvd::device> rows{index.view(), row.view()};
            optimizer.gradient_ready(0, s);
            optimizer.gradient_ready(words, rows, s);
            auto gradients = optimizer.synchronize(s);
            const double each = size - 1, norm = std::sqrt(5 * each * each + 25);
            CHECK(optimizer.gradient_norm(gradients, s) == doctest::Approx(norm));
            hvd::clip_by_norm(gradients, 0.5);
            optimizer.apply(std::move(gradients), s);
            CHECK(optimizer.gradient_norm(s) == doctest::Approx(norm));
            for (const float x : s.values(a)) CHECK(x == doctest::Approx(-each * 0.5 / norm));
            CHECK(s.values(table)[2] == doctest::Approx(-3 * 0.5 / norm));
            CHECK(s.values(table)[3] == doctest::Approx(-4 * 0.5 / norm));
            CHECK(s.values(own) == floats(2, float(-rank - 1)));
            CHECK(s.values(frozen) == floats(2, 0));
        }
    });
}

TEST_CASE("ranks whose tensors lie elsewhere clip to the same bits") {
    train_on<hvd::nccl>(3, 3, [](auto& world, auto& gpus) {
        const stream s;
        constexpr std::size_t n = 5001;
        floats g;
        for (std::size_t k = 0; k < n; ++k) g.push_back(1 / float(k + 3));
        const std::size_t shift = std::size_t(world.rank());
        const tensor<float> w(floats(n + shift, 0)), dw(floats(n + shift, 0));
        const hvd::tensor_view<float, hvd::device> value(w.data() + shift, {n}),
            gradient(dw.data() + shift, {n});
        floats shifted(n + shift, 0);
        std::copy(g.begin(), g.end(), shifted.begin() + std::ptrdiff_t(shift));
        s.write(dw, shifted);
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{1});
        optimizer.register_parameter("w", value, gradient);
        auto gradients = optimizer.synchronize(s);
        hvd::clip_by_norm(gradients, 0.1);
        optimizer.apply(std::move(gradients), s);
        double norm = optimizer.gradient_norm(s);
        const auto norms = world.allgather(hvd::view(&norm, 1)).values;
        for (const double other : norms) CHECK(other == norm);
    });
}

TEST_CASE("a norm that cannot be, and optimizers that know of none, are refused") {
    train_on<hvd::nccl>(2, 2, [](auto&, auto& gpus) {
        struct own_step {
            void step(std::span<const hvd::tensor_view<float, hvd::device>>,
                      std::span<const hvd::tensor_view<float, hvd::device>>, cudaStream_t) {}
        };
        const stream s;
        const tensor<float> w{1}, dw{1};
        hvd::distributed_optimizer optimizer(gpus, own_step());
        optimizer.register_parameter("w", w.view(), dw.view());
        auto gradients = optimizer.synchronize(s);
        for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()})
            CHECK_THROWS_AS(hvd::clip_by_norm(gradients, bad), hvd::usage_error);
        hvd::clip_by_norm(gradients, 1);
        CHECK_THROWS_WITH_AS(optimizer.apply(std::move(gradients), s),
                             doctest::Contains("is for hvd's own optimizers"), hvd::usage_error);
    });
}

}  // namespace device_clip_tests
