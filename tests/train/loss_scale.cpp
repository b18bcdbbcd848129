// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Losses that are scaled so that small gradients do not vanish in 16 bits.

#include <hvd/train.hpp>

#include "model.hpp"

namespace loss_scale_tests {

using communicator = hvd_test::communicator;
namespace optimizers = hvd::optimizers;
using doctest::Approx;
using doctest::Contains;

namespace {

// The mean over the ranks of (rank + 1).
double mean_of_ranks(const communicator& comm) { return (comm.size() + 1) / 2.0; }

}  // namespace

TEST_CASE("gradients that vanish in 16 bits arrive if the loss is scaled") {
    hvd_test::on_ranks([](communicator& comm) {
        const float tiny = 0x1p-31f * float(comm.rank() + 1);
        const auto trained = [&](double value) {
            std::vector<float> w(3), dw(3);
            hvd::distributed_optimizer optimizer(
                comm, optimizers::sgd<float>{1},
                {.codec = hvd::codec::cast<hvd::float16>, .skip_nonfinite = true});
            optimizer.register_parameter("w", w, dw);
            hvd::loss_scale scale{.value = value, .interval = 3};
            for (int step = 0; step < 7; ++step) {
                dw.assign(3, tiny * float(scale.value));
                CHECK(scale.step(optimizer));
            }
            CHECK(scale.value == value * 4);  // after 3 and 6 steps
            CHECK(scale.good_steps == 1);
            return double(w[2]);
        };
        CHECK(trained(1) == 0);
        CHECK(trained(0x1p20) == Approx(-7 * 0x1p-31 * mean_of_ranks(comm)).epsilon(1e-3));
    });
}

TEST_CASE("an overflow on one rank leaves the step out on all and lowers the scale of all") {
    hvd_test::on_ranks([](communicator& comm) {
        for (int culprit = 0; culprit < comm.size(); ++culprit)
            for (const auto codec : std::initializer_list<hvd::gradient_codec>{
                     hvd::codec::none, hvd::codec::cast<hvd::float16>}) {
                std::vector<float> w(2), dw(2);
                hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{1},
                                                     {.codec = codec, .skip_nonfinite = true});
                optimizer.register_parameter("w", w, dw);
                hvd::loss_scale scale{.value = 1024, .interval = 2};
                const auto step = [&](float gradient) {
                    dw.assign(2, gradient * float(scale.value));
                    return scale.step(optimizer);
                };
                CHECK(step(1));
                CHECK_FALSE(step(comm.rank() == culprit ? INFINITY : 1));
                CHECK(w[0] == -1);
                CHECK(scale.value == 512);
                CHECK(scale.good_steps == 0);
                if (codec.travels_as<hvd::float16>()) {  // 2^17 is too large for it
                    CHECK_FALSE(step(comm.rank() == culprit ? 256 : 1));
                    CHECK(scale.value == 256);
                }
                CHECK(step(1));
                CHECK(w[0] == -2);
                const double before = scale.value;
                CHECK(step(1));
                CHECK(scale.value == 2 * before);
                for (const double value : comm.allgather(scale.value).values)
                    CHECK(value == scale.value);
            }
    });
}

TEST_CASE("clipping a norm that is no number still leaves the step out and lowers the scale") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> w = {1, 1}, dw(2);
        hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{1},
                                             {.skip_nonfinite = true});
        optimizer.register_parameter("w", w, dw);
        hvd::loss_scale scale{.value = 16};
        for (const float bad : {INFINITY, NAN}) {
            dw = {16, comm.rank() == 0 ? bad : 0};
            const double before = scale.value;
            auto gradients = optimizer.synchronize();
            scale.unscale(gradients);
            hvd::clip_by_norm(gradients, 1);
            CHECK_FALSE(scale.update(optimizer.apply(std::move(gradients))));
            CHECK(scale.value == before / 2);
            CHECK(w == std::vector<float>{1, 1});
        }
    });
}

TEST_CASE("the scale has limits") {
    hvd::loss_scale scale{.value = 4, .interval = 1, .min = 2, .max = 16};
    for (int i = 0; i < 5; ++i) CHECK(scale.update(true));
    CHECK(scale.value == 16);
    for (int i = 0; i < 5; ++i) CHECK_FALSE(scale.update(false));
    CHECK(scale.value == 2);
}

TEST_CASE("a scaled loss trains to the same bits, with each option, and as one rank does") {
    const std::vector<hvd::optimizer_options> kinds = {
        {},
        {.bucket_bytes = 1},
        {.op = hvd::sum},
        {.op = hvd::adasum},
        {.backward_passes_per_step = 2, .average_passes = true},
        {.gradient_predivide_factor = 3}};
    hvd_test::on_ranks([&](communicator& comm) {
        for (auto options : kinds)
            for (const bool clips : {false, true}) {
                options.skip_nonfinite = true;
                const auto trained = [&](bool scaled) {
                    hvd_test::regression model;
                    std::vector<double> own(1), d_own(1);
                    hvd::distributed_optimizer optimizer(
                        comm, optimizers::sgd<double>{.rate = 0.02, .momentum = 0.9}, options);
                    model.register_with(optimizer);
                    optimizer.register_local("own", own, d_own);
                    hvd::loss_scale scale{.value = 256, .interval = 3};
                    if (!scaled) scale = {.value = 1, .growth = 1};
                    for (int step = 0; step < 8; ++step) {
                        model.zero();
                        model.backward(step, 0, hvd_test::regression::batch, comm.rank(),
                                       comm.size());
                        for (auto* g : {&model.dw, &model.dv, &model.db})
                            for (double& x : *g) x *= scale.value;
                        d_own[0] = scale.value * comm.rank();
                        auto gradients = optimizer.synchronize();
                        scale.unscale(gradients);
                        if (clips) {
                            hvd::clip_by_norm(gradients, 0.5);
                            CHECK(hvd::global_norm(gradients) <= 0.5 + 1e-12);
                        }
                        CHECK(scale.update(optimizer.apply(std::move(gradients))));
                    }
                    CHECK(scale.value == (scaled ? 1024 : 1));
                    auto all = model.all();
                    all.push_back(own[0]);
                    return all;
                };
                const auto plain = trained(false), scaled = trained(true);
                CHECK(plain == scaled);
                if (options.op == hvd::average && !clips && options.backward_passes_per_step == 1) {
                    auto alone = hvd_test::trained_alone(
                        optimizers::sgd<double>{.rate = 0.02, .momentum = 0.9}, 8);
                    alone.push_back(scaled.back());
                    CHECK(hvd_test::distance(alone, scaled) < 1e-12);
                }
            }
    });
}

TEST_CASE("parameters of float16 with masters are trained by gradients that vanish in float16") {
    using masters = optimizers::float_masters<hvd::float16, optimizers::sgd<float>>;
    hvd_test::on_ranks([](communicator& comm) {
        const auto trained = [&](double value) {
            std::vector<hvd::float16> w(2, hvd::float16(0.0f)), dw(2, hvd::float16(0.0f));
            hvd::distributed_optimizer optimizer(comm, masters{{.rate = 1}},
                                                 {.skip_nonfinite = true});
            optimizer.register_parameter("w", w, dw);
            hvd::loss_scale scale{.value = value};
            for (int step = 0; step < 4; ++step) {
                const double gradient = 0x1p-27 * (comm.rank() + 1);
                dw.assign(2, hvd::float16(float(gradient * scale.value)));
                CHECK(scale.step(optimizer));
            }
            return double(optimizer.optimizer().master[0][1]);
        };
        CHECK(trained(1) == 0);
        CHECK(trained(65536) == Approx(-4 * 0x1p-27 * mean_of_ranks(comm)).epsilon(1e-3));
    });
}

TEST_CASE_TEMPLATE("rows of a scaled loss are stepped as those of the loss itself", Optimizer,
                   optimizers::sgd<float>, optimizers::adam<float>,
                   optimizers::lazy_rows<optimizers::sgd<float>>) {
    hvd_test::on_ranks([](communicator& comm) {
        const auto trained = [&](double value) {
            std::vector<float> table(12, 1), gradient(12);
            hvd::distributed_optimizer optimizer(comm, Optimizer{}, {.skip_nonfinite = true});
            optimizer.optimizer().rate = 0.5f;
            optimizer.register_sparse("table", table, gradient, 2);
            hvd::loss_scale scale{.value = value, .growth = 1};
            for (int step = 0; step < 3; ++step) {
                const auto x = float(value * (comm.rank() + step));
                optimizer.gradient_ready(
                    0, hvd::sparse_rows<float>{{comm.rank() % 4, 5}, {x, 2 * x, 3 * x, x}});
                auto gradients = optimizer.synchronize();
                scale.unscale(gradients);
                hvd::clip_by_norm(gradients, 2.0);
                CHECK(scale.update(optimizer.apply(std::move(gradients))));
            }
            return table;
        };
        CHECK(trained(1) == trained(4096));
        CHECK(trained(1)[11] != 1);
    });
}

TEST_CASE("rows of float16 with masters are divided in float") {
    using masters = optimizers::float_masters<hvd::float16, optimizers::sgd<float>>;
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<hvd::float16> table(6, hvd::float16(0.0f)), gradient = table;
        hvd::distributed_optimizer optimizer(comm, masters{{.rate = 1}}, {.skip_nonfinite = true});
        optimizer.register_sparse("table", table, gradient, 2);
        hvd::loss_scale scale;
        const hvd::float16 x(float(0x1p-27 * (comm.rank() + 1) * scale.value));
        optimizer.gradient_ready(0, hvd::sparse_rows<hvd::float16>{{1}, {x, x}});
        CHECK(scale.step(optimizer));
        const double expected = -0x1p-27 * mean_of_ranks(comm);
        CHECK(double(optimizer.optimizer().master[0][3]) == Approx(expected).epsilon(1e-3));
    });
}

TEST_CASE("a scaled loss is refused where its gradients would vanish, or nobody sees an overflow") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> w(2), dw(2, 1);
        hvd::distributed_optimizer careless(comm, optimizers::sgd<float>{1});
        careless.register_parameter("w", w, dw);
        hvd::loss_scale scale;
        CHECK_THROWS_WITH_AS(scale.step(careless), Contains(".skip_nonfinite = true"),
                             hvd::usage_error);
        CHECK(w[0] == 0);

        std::vector<hvd::float16> h(2, hvd::float16(1.0f)), dh(2, hvd::float16(1.0f));
        hvd::distributed_optimizer halves(comm, optimizers::sgd<hvd::float16>{1},
                                          {.skip_nonfinite = true});
        halves.register_parameter("h", h, dh);
        CHECK_THROWS_WITH_AS(scale.step(halves), Contains("float_masters"), hvd::usage_error);
        CHECK(float(h[0]) == 1);

        std::vector<hvd::bfloat16> b(2, hvd::bfloat16(1.0f)), db(2, hvd::bfloat16(65536.0f));
        hvd::distributed_optimizer wide(comm, optimizers::sgd<hvd::bfloat16>{1},
                                        {.skip_nonfinite = true});
        wide.register_parameter("b", b, db);
        CHECK(scale.step(wide));
        CHECK(float(b[0]) == 0);
    });
}

TEST_CASE("a scale is sent as an object, and shows the numbers that it needs") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::loss_scale scale;
        if (comm.rank() == 0) scale.value = 128, scale.good_steps = 7;
        comm.broadcast_object(scale, hvd::root{0});
        std::vector<double> numbers;
        scale.for_each_number([&](const char*, double& x) { numbers.push_back(x); });
        CHECK(numbers == std::vector<double>{128, 2, 0.5, 2000, 1, 0x1p24, 7});
    });
}

TEST_CASE("ranks whose scales differ are told, and a scale that divides nothing is refused") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> w(1, 1), dw(1, 1);
        hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<float>{.rate = 1},
                                             {.skip_nonfinite = true});
        optimizer.register_parameter("w", w, dw);
        hvd::loss_scale scale{.value = comm.rank() == 0 ? 4.0 : 8.0};
        if (comm.size() > 1)
            CHECK_THROWS_WITH_AS(scale.step(optimizer), doctest::Contains("are from 4 to 8"),
                                 hvd::usage_error);
        for (const double value : {0.0, -4.0, 1e-320, double(INFINITY), double(NAN)}) {
            scale.value = value;
            CHECK_THROWS_WITH_AS(scale.step(optimizer), doctest::Contains("a loss scale of"),
                                 hvd::usage_error);
        }
        CHECK(w[0] == 1);
        scale.value = 4;
        dw[0] = 4;
        CHECK(scale.step(optimizer));
        CHECK(w[0] == 0);
    });
}

}  // namespace loss_scale_tests
