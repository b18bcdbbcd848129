// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The calls of training with device tensors that need no optimizer, on every backend.

#include "device_support.hpp"

namespace device_calls_tests {

using namespace device_test;

namespace {

// Gradients that differ between ranks, of sizes on both sides of the packing.
std::vector<float> gradient(std::size_t count, int rank, int tensor) {
    std::vector<float> g;
    for (std::size_t i = 0; i < count; ++i)
        g.push_back(float(int(i % 7) - 3) * float(rank + 1) + float(tensor));
    return g;
}

const std::vector<std::size_t> sizes = {1, 5, 1000, 0, 33};

template <class F>
std::vector<std::vector<float>> on_each(F f) {
    std::vector<std::vector<float>> all;
    for (std::size_t t = 0; t < sizes.size(); ++t) all.push_back(f(int(t), sizes[t]));
    return all;
}

struct tensors {
    std::vector<std::unique_ptr<tensor<float>>> owned;
    std::vector<hvd::tensor_view<float, hvd::device>> views;

    explicit tensors(const std::vector<std::vector<float>>& values) {
        for (const auto& v : values) {
            owned.push_back(std::make_unique<tensor<float>>(v));
            views.push_back(owned.back()->view());
        }
    }
    std::vector<std::vector<float>> values() const {
        std::vector<std::vector<float>> all;
        for (const auto& t : owned) all.push_back(t->values());
        return all;
    }
};

// The same call for the host's tensors.
std::vector<std::vector<float>> on_host(hvd::communicator<host>& world, int rank,
                                        const hvd::gradient_options& o) {
    auto mine = on_each([&](int t, std::size_t n) { return gradient(n, rank, t); });
    std::vector<hvd::tensor_view<float>> views;
    for (auto& g : mine) views.push_back(hvd::view(g.data(), g.size()));
    hvd::distributed_gradients(world, views, o);
    return mine;
}

void check_near(const std::vector<std::vector<float>>& got,
                const std::vector<std::vector<float>>& expected, double tolerance) {
    REQUIRE(got.size() == expected.size());
    for (std::size_t t = 0; t < got.size(); ++t) {
        REQUIRE(got[t].size() == expected[t].size());
        double most = 0;
        for (std::size_t i = 0; i < got[t].size(); ++i) {
            const double d = std::abs(double(got[t][i]) - double(expected[t][i]));
            most = d > most || d != d ? d : most;
        }
        CHECK(most <= tolerance);
    }
}

}  // namespace

TEST_CASE("gradients on the device become those of the host, behind the stream that writes them") {
    train_on_every_backend([](auto& world, auto& gpus) {
        for (const hvd::gradient_options& o :
             std::vector<hvd::gradient_options>{{},
                                                {.op = hvd::sum},
                                                {.prescale = 0.5, .postscale = 4},
                                                {.codec = hvd::codec::cast<hvd::bfloat16>},
                                                {.op = hvd::adasum}}) {
            const auto expected = on_host(world, gpus.rank(), o);
            const stream s;
            const tensors g(on_each([](int, std::size_t n) { return std::vector<float>(n, -1); }));
            for (std::size_t t = 0; t < sizes.size(); ++t)
                s.write(*g.owned[t], gradient(sizes[t], gpus.rank(), int(t)));
            hvd::distributed_gradients(gpus, g.views, o, s);
            cudaStreamSynchronize(s);
            check_near(g.values(), expected, o.codec == hvd::codec::none ? 1e-5 : 0.3);
        }
    });
}

TEST_CASE("staged gradients that differ are told before the stream may use them") {
    for (int ranks = 2; ranks <= 4; ++ranks)
        train_on<hvd::staged<host>>(ranks, ranks, [](auto&, auto& gpus) {
            const stream s;
            const tensor<float> two{1, 2}, three{1, 2, 3};
            const hvd::tensor_view<float, hvd::device> differ[] = {gpus.rank() == 1 ? three.view()
                                                                                    : two.view()};
            const hvd::tensor_view<float, hvd::device> alike[] = {two.view()};
            CHECK_THROWS_AS(hvd::distributed_gradients(gpus, differ, {}, s), hvd::mismatch_error);
            hvd::distributed_gradients(gpus, alike, {}, s);
            CHECK(s.values(two) == std::vector<float>{1, 2});
        });
}

TEST_CASE("local gradients on the device stay and are divided by the ranks") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s;
        const tensor<float> value{0, 0}, other{0}, g{2.0f * float(gpus.rank() + 1), 8}, h{4};
        const hvd::tensor_view<float, hvd::device> parameters[] = {value.view(), other.view()},
                                                   gradients[] = {g.view(), h.view()};
        hvd::local_parameters local;
        local.register_local(value.view());
        hvd::partial_distributed_gradients(gpus, parameters, gradients, local, {}, s);
        const float ranks = float(gpus.size());
        CHECK(s.values(g) == std::vector<float>{2.0f * float(gpus.rank() + 1) / ranks, 8 / ranks});
        CHECK(s.values(h) == std::vector<float>{4});
        CHECK_THROWS_AS(hvd::partial_distributed_gradients(
                            gpus, parameters, std::span(gradients).first(1), local, {}, s),
                        hvd::usage_error);
    });
}

TEST_CASE("a codec of doubles on the device is refused") {
    train_on<hvd::nccl>(1, 1, [](auto&, auto& gpus) {
        const tensor<double> g{1};
        const hvd::tensor_view<double, hvd::device> gradients[] = {g.view()};
        CHECK_THROWS_WITH_AS(
            hvd::distributed_gradients(gpus, gradients, {.codec = hvd::codec::cast<hvd::float16>}),
            doctest::Contains("a codec of device tensors is for gradients of float"),
            hvd::usage_error);
    });
}

TEST_CASE("parameters on the device become the root's, behind the stream that writes them") {
    train_on_every_backend([](auto&, auto& gpus) {
        const int last = gpus.size() - 1;
        const stream s;
        const tensor<float> w(std::vector<float>(300, -1)), big(std::vector<float>(200'000, -1));
        const tensor<double> b{-1};
        s.write(w, std::vector<float>(300, float(gpus.rank())));
        s.write(big, std::vector<float>(200'000, float(10 * gpus.rank())));
        s.write(b, {double(100 * gpus.rank())});
        hvd::broadcast_parameters(gpus, hvd::fuse(w.view(), b.view(), big.view()), hvd::root{last},
                                  s);
        CHECK(w.values()[299] == float(last));
        CHECK(big.values()[199'999] == float(10 * last));
        CHECK(b.values()[0] == 100.0 * last);
    });
}

TEST_CASE("an optimizer's numbers and slots, and metrics, travel over communicators of devices") {
    train_on_every_backend([](auto&, auto& gpus) {
        const int last = gpus.size() - 1;
        hvd::optimizers::adam<float> adam{.rate = float(gpus.rank())};
        adam.steps = {{double(gpus.rank())}};
        if (gpus.rank() == last) adam.mean = {{1, 2}, {}, {3}};
        hvd::broadcast_optimizer_state(gpus, adam, hvd::root{last});
        CHECK(adam.rate == float(last));
        CHECK(adam.steps.of(0) == last);
        CHECK(adam.mean == std::vector<std::vector<float>>{{1, 2}, {}, {3}});

        std::vector<hvd::metric> metrics = {{"loss", double(gpus.rank())}, {"accuracy", 1}};
        hvd::average_metrics(gpus, metrics, gpus.rank() + 1);
        double sum = 0, count = 0;
        for (int r = 0; r < gpus.size(); ++r) sum += r * (r + 1), count += r + 1;
        CHECK(metrics[0].mean == doctest::Approx(sum / count));
        CHECK(metrics[1].mean == 1);

        metrics[0].name = gpus.rank() == 0 ? "loss" : "los";
        if (gpus.size() > 1)
            CHECK_THROWS_AS(hvd::average_metrics(gpus, metrics, 1), hvd::mismatch_error);
        int calls = 0;
        hvd::on_root(gpus, [&] { ++calls; });
        CHECK(calls == (gpus.rank() == 0 ? 1 : 0));
        CHECK_THROWS_AS(hvd::on_root(gpus, [] { throw hvd::usage_error(0, "no"); }), hvd::error);
    });
}

}  // namespace device_calls_tests
