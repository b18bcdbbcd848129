// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Reports of gradients on the device: what unreported ones contribute, the order of the buckets,
// passes whose reports do not count.

#include "device_model.hpp"

namespace device_reports_tests {

using namespace device_test;
namespace optimizers = hvd::optimizers;

namespace {

using floats = std::vector<float>;
using indices = std::vector<std::size_t>;

// The model, and an optimizer with a bucket for each parameter unless the options say more.
template <class Comm>
struct trainer {
    stream s;
    device_model<float> model;
    hvd::distributed_optimizer<Comm, optimizers::sgd<float>, float> optimizer;

    trainer(Comm& gpus, const hvd::optimizer_options& o) : optimizer(gpus, {.rate = 0.125f}, o) {
        model.register_with(optimizer);
    }

    void backward(int step, int pass = 0) {
        for (std::size_t i = 0; i < model.sizes.size(); ++i)
            model.backward(s, i, optimizer.comm().rank(), step, pass);
    }
    void report(const indices& order) {
        for (const std::size_t i : order) optimizer.gradient_ready(i, s);
    }
    // Returns the number of buckets under way before the end of the step.
    std::size_t step(int number, const indices& reports) {
        optimizer.zero_gradients(s);
        backward(number);
        report(reports);
        const std::size_t started = optimizer.buckets_started();
        optimizer.step(s);
        return started;
    }
    auto values() const { return model.values_of_all(s); }
};

}  // namespace

TEST_CASE("a step with reports of some gradients equals a step with none, on the device") {
    train_on_every_backend([](auto&, auto& gpus) {
        for (const hvd::optimizer_options& o : std::vector<hvd::optimizer_options>{
                 {.bucket_bytes = 1},
                 {.bucket_bytes = 1, .groups = {{0, 3}}, .backward_passes_per_step = 2},
                 {.bucket_bytes = 1, .shard_state = true},
                 {.op = hvd::adasum}}) {
            trainer some(gpus, o), none(gpus, o);
            for (auto* t : {&some, &none}) t->optimizer.freeze(1);
            for (int step = 0; step < 4; ++step) {
                if (step == 2)
                    for (auto* t : {&some, &none}) t->optimizer.unfreeze(1);
                for (auto* t : {&some, &none}) t->optimizer.zero_gradients(t->s);
                for (int pass = 0; pass < o.backward_passes_per_step; ++pass) {
                    some.backward(step, pass);
                    none.backward(step, pass);
                    for (std::size_t i = std::size_t(pass); i < 4; ++i)
                        if ((i + std::size_t(gpus.rank() + step)) % 3 == 0)
                            some.optimizer.gradient_ready(i, some.s);
                }
                some.optimizer.step(some.s);
                none.optimizer.step(none.s);
            }
            CHECK(difference(some.values(), none.values()) <= 1e-5);
        }
    });
}

TEST_CASE("nothing_ready() of one gradient on the device counts as its report and gives zeros") {
    train_on_every_backend([](auto&, auto& gpus) {
        const stream s;
        const tensor<float> a{1}, b{1}, da{8}, db{8};
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1},
                                             {.bucket_bytes = 1});
        optimizer.register_parameter("a", a.view(), da.view());
        optimizer.register_parameter("b", b.view(), db.view());
        if (gpus.rank() == 0) optimizer.gradient_ready(1, s);
        else optimizer.nothing_ready(1, s);
        CHECK(optimizer.buckets_started() == 1);
        optimizer.step(s);
        CHECK(s.values(a) == floats{-7});
        CHECK(s.values(b)[0] == doctest::Approx(1 - 8 / float(gpus.size())));
    });
}

TEST_CASE(
    "the order of reports is learnt on the device, and an unreported gradient stops no bucket") {
    train_on_every_backend([](auto& world, auto& gpus) {
        for (const bool sharded : {false, true}) {
            trainer t(gpus, {.bucket_bytes = 1, .shard_state = sharded}),
                fixed(gpus, {.bucket_bytes = 1,
                             .order = hvd::bucket_order::reverse,
                             .shard_state = sharded}),
                named(gpus, {.bucket_bytes = 1,
                             .order = hvd::bucket_order::reverse,
                             .may_be_unreported = {2},
                             .shard_state = sharded});
            const indices reports = {0, 3, 1}, others = {3, 1, 0};
            CHECK(t.step(0, reports) == 1);
            fixed.step(0, {});
            CHECK(named.step(0, others) == 3);
            CHECK(t.optimizer.unreported() == indices{2});
            for (int step = 1; step < 12; ++step) {
                CHECK(t.step(step, step < 5 ? reports : others) == 3);
                fixed.step(step, {});
                CHECK(named.step(step, others) == 3);
            }
            t.optimizer.zero_gradients(t.s);
            t.backward(12);
            t.report({3});
            CHECK(t.optimizer.buckets_started() == 1);  // learnt again in step 10
            t.optimizer.step(t.s);
            fixed.step(12, {});
            named.step(12, {});
            CHECK(difference(t.values(), fixed.values()) <= 1e-5);
            CHECK(difference(named.values(), fixed.values()) <= 1e-5);
            world.barrier();
        }
    });
}

TEST_CASE("a step with nothing registered is refused on the device, on every rank") {
    train_on_every_backend([](auto&, auto& gpus) {
        hvd::distributed_optimizer<std::remove_reference_t<decltype(gpus)>, optimizers::sgd<float>,
                                   float>
            optimizer(gpus, {.rate = 1});
        CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains("there is no parameter"),
                             hvd::error);
        const stream s;
        const tensor<float> a{1}, da{8};
        optimizer.register_parameter("a", a.view(), da.view());
        optimizer.step(s);
        CHECK(s.values(a) == floats{-7});
    });
}

TEST_CASE("average_passes refuses a step with fewer passes on the device") {
    train_on<hvd::staged<host>>(2, 2, [](auto&, auto& gpus) {
        trainer t(gpus, {.backward_passes_per_step = 3, .average_passes = true});
        const auto step = [&](int passes) {
            t.optimizer.zero_gradients(t.s);
            for (int pass = 0; pass < passes; ++pass) {
                t.backward(0, pass);
                t.report({0, 1, 2, 3});
            }
            t.optimizer.step(t.s);
        };
        step(3);
        const auto before = t.values();
        if (gpus.rank() == 1)
            CHECK_THROWS_WITH_AS(step(2), doctest::Contains("average_passes divides by 3"),
                                 hvd::usage_error);
        else CHECK_THROWS_AS(step(3), hvd::peer_error);
        CHECK(t.values() == before);
        step(3);
        CHECK(t.values() != before);
    });
}

TEST_CASE("zero_gradients() drops a step on the device whose report was refused on all ranks") {
    train_on<hvd::staged<host>>(2, 2, [](auto&, auto& gpus) {
        trainer t(gpus, {.bucket_bytes = 1}), none(gpus, {.bucket_bytes = 1});
        for (int step = 0; step < 11; ++step) {
            t.optimizer.zero_gradients(t.s);
            t.backward(step);
            t.report({3, 2, 1, 0});
            if (step % 3 == 1 || step == 9) {
                CHECK_THROWS_AS(t.optimizer.gradient_ready(0, t.s), hvd::usage_error);
                continue;
            }
            t.optimizer.step(t.s);
            none.step(step, {});
        }
        CHECK(difference(t.values(), none.values()) <= 1e-5);
        // One rank alone drops its step: the ranks are told in the next one.
        t.optimizer.zero_gradients(t.s);
        t.report({3, 2, 1, 0});
        if (gpus.rank() == 1) CHECK_THROWS_AS(t.optimizer.gradient_ready(0, t.s), hvd::usage_error);
        else t.optimizer.step(t.s);
        CHECK_THROWS_WITH_AS(t.step(12, {3, 2, 1, 0}), doctest::Contains("dropped its last step"),
                             hvd::mismatch_error);
        hvd::broadcast_parameters(t.optimizer);
        t.step(13, {3, 2, 1, 0});
    });
}

TEST_CASE("a step that is abandoned before the ranks have looked at their orders changes nothing") {
    train_on_every_backend([](auto& world, auto& gpus) {
        trainer t(gpus, {.bucket_bytes = 1});
        const indices reports = {1, 3, 2, 0};
        t.step(0, reports);
        const auto before = t.values();
        if (gpus.rank() == gpus.size() - 1) t.optimizer.abandon("no more data");
        else CHECK_THROWS_AS(t.step(1, reports), hvd::peer_error);
        CHECK(difference(t.values(), before) == 0);
        for (int step = 1; step < 12; ++step) t.step(step, reports);
        t.optimizer.gradient_ready(1, t.s);
        CHECK(t.optimizer.buckets_started() == 1);
        t.optimizer.step(t.s);
        CHECK(difference(t.values(), before) > 0);
        world.barrier();
    });
}

TEST_CASE("passes in no_sync() on other streams come before the buckets") {
    train_on_every_backend([](auto& world, auto& gpus) {
        const stream s, other;
        const tensor<float> a{0}, b{0}, own{0}, da{0}, db{0}, d_own{0};
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1},
                                             {.bucket_bytes = 1, .scale_local_gradients = false});
        optimizer.register_parameter("a", a.view(), da.view());
        optimizer.register_parameter("b", b.view(), db.view());
        optimizer.register_local("own", own.view(), d_own.view());
        for (int step = 0; step < 3; ++step) {
            optimizer.zero_gradients(s);
            cudaStreamSynchronize(s);
            const int passes = gpus.rank() + step;
            {
                const auto quiet = optimizer.no_sync();
                for (int pass = 0; pass < passes; ++pass) {
                    for (const auto* g : {&da, &db, &d_own}) other.add(*g, floats{4});
                    for (const std::size_t i : {0, 1, 2}) optimizer.gradient_ready(i, other);
                    CHECK(optimizer.buckets_started() == 0);
                }
            }
            // Nothing more comes for b, which a pass has written unless there was none.
            optimizer.gradient_ready(0, s);
            optimizer.nothing_ready(1, s);
            CHECK(optimizer.buckets_started() == 2);
            optimizer.step(s);
            cudaStreamSynchronize(s);
        }
        float mean = 0;
        for (int r = 0; r < gpus.size(); ++r) mean += float(4 * (3 * r + 3));
        mean /= float(gpus.size());
        CHECK(s.values(a)[0] == doctest::Approx(-mean));
        CHECK(s.values(b)[0] == doctest::Approx(-mean));
        CHECK(s.values(own)[0] == float(-4 * (3 * gpus.rank() + 3)));
        world.barrier();
    });
}

TEST_CASE("a captured step keeps its buckets, and with them the order that was learnt before") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        for (const int learns_in : {1, 2})
            train_on<hvd::nccl>(ranks, ranks, [&](auto& world, auto& gpus) {
                trainer fixed(gpus, {.bucket_bytes = 1, .order = hvd::bucket_order::reverse});
                device_model<float> model;
                cudaStreamSynchronize(nullptr);  // the tensors are filled
                cudaStream_t s{};
                cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
                {
                    hvd::distributed_optimizer optimizer(
                        gpus, optimizers::sgd<float>{.rate = 0.125f}, {.bucket_bytes = 1});
                    model.register_with(optimizer);
                    std::size_t started = 0;  // by the first report
                    const auto step = [&] {
                        optimizer.zero_gradients(s);
                        for (const std::size_t i : {0, 1, 2, 3}) {
                            model.backward(s, i, gpus.rank(), 0, 0);
                            optimizer.gradient_ready(i, s);
                            if (i == 0) started = optimizer.buckets_started();
                        }
                        optimizer.step(s);
                    };
                    for (int eager = 0; eager < learns_in; ++eager) step();
                    cudaStreamSynchronize(s);
                    world.barrier();
                    cudaGraph_t graph{};
                    cudaGraphExec_t launched{};
                    cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
                    step();
                    CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
                    CHECK(started == (learns_in == 2 ? 1 : 0));
                    cudaGraphInstantiate(&launched, graph, 0);
                    for (int k = 0; k < 12; ++k) {
                        cudaGraphLaunch(launched, s);
                        cudaStreamSynchronize(s);
                        step();
                        CHECK(started == (learns_in == 2 ? 1 : 0));
                    }
                    for (int k = 0; k < 24 + learns_in; ++k) fixed.step(0, {});
                    CHECK(difference(model.values_of_all(s), fixed.values()) <= 1e-5);
                    world.barrier();
                    cudaGraphExecDestroy(launched);
                    cudaGraphDestroy(graph);
                }
                cudaStreamDestroy(s);
            });
}

}  // namespace device_reports_tests
