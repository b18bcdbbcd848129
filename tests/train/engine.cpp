// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The distributed optimizer on an engine: gradients are matched by their names.

#include <algorithm>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include <hvd/train_engine.hpp>

#include "model.hpp"

namespace engine_tests {

using communicator = hvd_test::communicator;
using engine = hvd::engine<hvd_test::backend>;
using hvd_test::regression;
namespace optimizers = hvd::optimizers;

namespace {

constexpr int steps = 12;

// The parameters of the model in an order that differs between ranks, steps and passes.
std::vector<std::size_t> shuffled(std::size_t count, int rank, int step, std::size_t pass = 0) {
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    std::mt19937 random(unsigned(1000 * rank + 10 * step) + unsigned(pass));
    std::shuffle(order.begin(), order.end(), random);
    return order;
}

// Trains on a communicator or an engine. On an engine ranks report in their own orders.
template <class Calls, class Optimizer>
std::vector<double> trained(Calls& calls, const Optimizer& optimizer,
                            const hvd::optimizer_options& options, bool overlap = true) {
    regression model;
    hvd::distributed_optimizer distributed(calls, optimizer, options);
    model.register_with(distributed);
    const auto passes = std::size_t(options.backward_passes_per_step);
    for (int step = 0; step < steps; ++step) {
        distributed.zero_gradients();
        for (std::size_t pass = 0; pass < passes; ++pass) {
            model.backward(step, regression::batch / passes * pass,
                           regression::batch / passes * (pass + 1), calls.rank(), calls.size());
            if (!overlap) continue;
            const int order_of = hvd::detail::is_engine<Calls> ? calls.rank() : 0;
            for (const std::size_t i : shuffled(3, order_of, step, pass))
                distributed.gradient_ready(i);
        }
        CHECK(distributed.step());
    }
    return model.all();
}

std::vector<hvd::optimizer_options> all_options() {
    return {{},
            {.op = hvd::sum},
            {.groups = {{0, 2}}},
            {.may_be_unreported = {1}},
            {.backward_passes_per_step = 2},
            {.backward_passes_per_step = 2, .average_passes = true},
            {.gradient_predivide_factor = 4},
            {.codec = hvd::codec::cast<hvd::bfloat16>},
            {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::float16>)},
            {.skip_nonfinite = true},
            {.op = hvd::adasum}};
}

// Takes note of the tensors of an engine, in the order in which they run.
class remembering {
public:
    void on_begin(const hvd::event&) {}
    void on_end(const hvd::event&, bool) {}
    void on_split(remembering& parent) { tensors_ = parent.tensors_; }
    void on_ready(const hvd::event& e) {
        const std::lock_guard lock(tensors_->mutex);
        tensors_->ran.emplace_back(e.name);
    }
    std::vector<std::string> take() {
        const std::lock_guard lock(tensors_->mutex);
        return std::exchange(tensors_->ran, {});
    }

private:
    struct list {
        std::mutex mutex;
        std::vector<std::string> ran;
    };
    std::shared_ptr<list> tensors_ = std::make_shared<list>();
};

// Calls f with the ranks of a communicator that is observed.
template <class F>
void on_observed_ranks(F f) {
    using backend = hvd::observed<hvd_test::backend, remembering>;
#if defined(HVD_TEST_BACKEND_MPI)
    auto world = hvd::communicator<backend>::world();
    f(world);
#else
    for (const int ranks : hvd_test::thread_counts()) hvd::run_threads<backend>(ranks, f);
#endif
}

}  // namespace

TEST_CASE("ranks that report in their own orders train as on a communicator, bit by bit") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e{comm};
        const optimizers::sgd<double> momentum{.rate = 0.002, .momentum = 0.9};
        for (hvd::optimizer_options o : all_options()) {
            CAPTURE(o.op.name());
            CAPTURE(o.codec.name());
            CAPTURE(o.backward_passes_per_step);
            const auto named = trained(e, momentum, o);
            const auto whole = trained(e, momentum, o, false);
            o.bucket_bytes = 1;  // error feedback rounds slices, whose bounds are those of a bucket
            const auto ordered = trained(comm, momentum, o);
            CHECK(hvd_test::distance(named, ordered) == 0);
            CHECK(hvd_test::distance(whole, ordered) == 0);
        }
    });
}

TEST_CASE("N ranks of an engine equal one rank with the whole batch") {
    hvd_test::on_ranks([](communicator& comm) {
        engine small{comm, {.fusion_threshold = 0}}, large{comm};
        const optimizers::adam<double> adam{.rate = 0.01};
        const auto expected = hvd_test::trained_alone(adam, steps);
        CHECK(hvd_test::distance(trained(small, adam, {}), expected) < 1e-9);
        CHECK(hvd_test::distance(trained(large, adam, {}), expected) < 1e-9);
    });
}

TEST_CASE("several threads report, each for its layers") {
    hvd_test::on_ranks([](communicator& comm) {
        constexpr std::size_t layers = 24, threads = 3;
        engine e{comm};
        std::vector<std::vector<float>> x(layers), g(layers);
        hvd::distributed_optimizer optimizer(e, optimizers::sgd<float>{.rate = 1},
                                             {.op = hvd::sum});
        for (std::size_t i = 0; i < layers; ++i) {
            x[i].assign(i + 1, 0);
            g[i].assign(i + 1, 0);
            optimizer.register_parameter("layer " + std::to_string(i), x[i], g[i]);
        }
        for (int step = 0; step < steps; ++step) {
            optimizer.zero_gradients();
            std::vector<std::thread> producers;
            for (std::size_t t = 0; t < threads; ++t)
                producers.emplace_back([&, t] {
                    for (const std::size_t i : shuffled(layers, comm.rank(), step)) {
                        if (i % threads != t) continue;
                        g[i].assign(i + 1, float(i) + 1);
                        optimizer.gradient_ready(i);
                    }
                });
            for (auto& p : producers) p.join();
            optimizer.step();
            for (std::size_t i = 0; i < layers; ++i)
                REQUIRE(x[i] == std::vector<float>(
                                    i + 1, -float((step + 1) * comm.size()) * (float(i) + 1)));
        }
    });
}

TEST_CASE("gradients that are not reported, frozen, local or nothing") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e{comm};
        const float n = float(comm.size());
        std::vector<float> a(3), b(3), c(3), own(3), da(3), db(3), dc(3), downs(3);
        hvd::distributed_optimizer optimizer(e, optimizers::sgd<float>{.rate = 1},
                                             {.op = hvd::sum, .scale_local_gradients = false});
        const auto ia = optimizer.register_parameter("a", a, da);
        const auto ib = optimizer.register_parameter("b", b, db);
        const auto ic = optimizer.register_parameter("c", c, dc);
        optimizer.register_local("own", own, downs);
        const auto step = [&] {
            optimizer.zero_gradients();
            for (auto* x : {&a, &b, &c, &own}) x->assign(3, 0);
            for (auto* x : {&da, &db, &dc}) x->assign(3, -1);
            downs.assign(3, -float(comm.rank()));
        };
        for (int time = 0; time < 4; ++time) {
            step();  // b travels as it is
            optimizer.gradient_ready(ic);
            optimizer.gradient_ready(ia);
            optimizer.step();
            CHECK(a[0] == n);
            CHECK(b[0] == n);
            CHECK(c[2] == n);
            CHECK(own[1] == float(comm.rank()));

            step();  // rank 0 has nothing for a
            if (comm.rank() == 0) optimizer.nothing_ready(ia);
            optimizer.step();
            CHECK(a[0] == n - 1);
            CHECK(b[0] == n);

            step();  // the last rank has nothing at all
            if (comm.rank() == comm.size() - 1) optimizer.nothing_ready();
            else optimizer.gradient_ready(ib);
            optimizer.step();
            CHECK(a[0] == n - 1);
            CHECK(b[0] == n - 1);

            optimizer.freeze(ib);
            step();
            optimizer.gradient_ready(ia);
            optimizer.step();
            CHECK(a[0] == n);
            CHECK(b[0] == 0);
            optimizer.unfreeze(ib);
        }
        CHECK(optimizer.unreported() == std::vector<std::size_t>{ib, ic});
    });
}

TEST_CASE("sparse gradients travel by the names of their tables") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto train = [&](auto& calls, hvd::sparse_policy policy, bool feedback) {
            std::vector<float> table(40, 1), dtable(40), other(24, 2), dother(24), w(3), dw(3);
            hvd::distributed_optimizer optimizer(
                calls, optimizers::sgd<float>{.rate = 0.1f},
                {.codec = feedback ? hvd::gradient_codec(hvd::codec::error_feedback(
                                         hvd::codec::cast<hvd::bfloat16>))
                                   : hvd::gradient_codec(hvd::codec::none)});
            const auto it = optimizer.register_sparse("table", table, dtable, 4, policy);
            const auto io = optimizer.register_sparse("other", other, dother, 3, policy);
            optimizer.register_parameter("w", w, dw);
            for (int step = 0; step < 5; ++step) {
                optimizer.zero_gradients();
                dw.assign(3, float(step) + 0.3f);
                const std::vector<std::int64_t> rows = {comm.rank() % 3, step};
                std::vector<float> values(8, 0.7f), others(6, 0.3f);
                const auto first = [&] {
                    optimizer.gradient_ready(it, hvd::sparse_view<float>{rows, values});
                };
                if (comm.rank() == 0) first();
                optimizer.gradient_ready(io, hvd::sparse_view<float>{rows, others});
                if (comm.rank() != 0) first();
                optimizer.step();
            }
            table.insert(table.end(), other.begin(), other.end());
            table.insert(table.end(), w.begin(), w.end());
            return table;
        };
        engine e{comm};
        for (const auto policy :
             {hvd::sparse_policy::gather, hvd::sparse_policy::dense, hvd::sparse_policy::automatic})
            for (const bool feedback : {false, true})
                CHECK(train(e, policy, feedback) == train(comm, policy, feedback));
    });
}

TEST_CASE("a step with an infinity is left out on all ranks, and the loss scale follows") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e{comm};
        std::vector<float> x(4, 1), g(4);
        hvd::distributed_optimizer optimizer(e, optimizers::sgd<float>{.rate = 1},
                                             {.skip_nonfinite = true});
        const auto i = optimizer.register_parameter("x", x, g);
        hvd::loss_scale scale{.value = 8};
        for (int step = 0; step < 6; ++step) {
            optimizer.zero_gradients();
            g.assign(4, float(scale.value));
            const bool bad = step % 3 == 1;
            if (bad && comm.rank() == comm.size() - 1) g[2] = INFINITY;
            optimizer.gradient_ready(i);
            CHECK(scale.step(optimizer) == !bad);
        }
        CHECK(x[0] == doctest::Approx(1 - 4));
        CHECK(scale.value == 2);
    });
}

TEST_CASE("gradients are clipped by the norm of all, and several passes in no_sync add up") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e{comm};
        std::vector<float> x(4), g(4);
        hvd::distributed_optimizer optimizer(e, optimizers::sgd<float>{.rate = 1});
        const auto i = optimizer.register_parameter("x", x, g);
        for (int step = 0; step < 3; ++step) {
            optimizer.zero_gradients();
            {
                const auto quiet = optimizer.no_sync();
                for (int pass = 0; pass <= comm.rank(); ++pass) {
                    g[0] += 3 / float(comm.rank() + 1);
                    optimizer.gradient_ready(i);
                }
            }
            g[1] = 4;
            optimizer.gradient_ready(i);
            auto gradients = optimizer.synchronize();
            CHECK(hvd::clip_by_norm(gradients, 1.0) == doctest::Approx(5));
            optimizer.apply(std::move(gradients));
            CHECK(x[1] == doctest::Approx(-0.8f * float(step + 1)));
        }
    });
}

TEST_CASE("parameters, state, buffers and objects of rank 0 reach all ranks") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e{comm};
        std::vector<float> x(4, float(comm.rank())), g(4), mean(2, float(comm.rank()));
        hvd::distributed_optimizer optimizer(
            e, optimizers::sgd<float>{.rate = comm.rank() == 0 ? 0.5f : 0.1f, .momentum = 0.9f});
        optimizer.register_parameter("x", x, g);
        optimizer.register_buffer("mean", mean);
        hvd::broadcast_parameters(optimizer);
        hvd::broadcast_optimizer_state(optimizer);
        CHECK(x[3] == 0);
        CHECK(mean[1] == 0);
        CHECK(optimizer.optimizer().rate == 0.5f);
        hvd::compare_parameters(optimizer);
        mean.assign(2, float(comm.rank()));
        hvd::synchronize_buffers(optimizer);
        CHECK(mean[0] == doctest::Approx(float(comm.size() - 1) / 2));

        std::vector<double> loose(3, comm.rank());
        hvd::broadcast_parameters(e, loose, hvd::root{comm.size() - 1});
        CHECK(loose[0] == comm.size() - 1);
        hvd::step_watch watch(optimizer);
        for (int step = 0; step < 3; ++step) {
            optimizer.zero_gradients();
            watch.step(1);
        }
        CHECK(int(watch.summary().ranks.size()) == comm.size());
    });
}

TEST_CASE("ranks with less data join, and the others train on") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e{comm};
        std::vector<float> x(4), g(4);
        hvd::distributed_optimizer optimizer(e, optimizers::sgd<float>{.rate = 1});
        const auto i = optimizer.register_parameter("x", x, g);
        for (int epoch = 0; epoch < 2; ++epoch) {
            for (int batch = 0; batch < 3 + 2 * comm.rank(); ++batch) {
                optimizer.zero_gradients();
                g.assign(4, -1);
                optimizer.gradient_ready(i);
                optimizer.step();
            }
            const int last = e.join().wait();
            hvd::broadcast_parameters(optimizer, hvd::root{last});
        }
        CHECK(x[2] == float(2 * (3 + 2 * (comm.size() - 1))));
    });
}

TEST_CASE("a step on an engine takes the question of its communicator along") {
    using answer = hvd::detail::step_question::answer;
    hvd_test::on_ranks([](communicator& comm) {
        const auto ask = [&](int who) {
            return hvd::detail::shared<hvd_test::asked_rank>::make(comm.rank() == who);
        };
        auto& question = hvd::detail::access::session_of(comm).question;
        for (const int who : {-1, 0, comm.size() - 1}) {
            const auto own = ask(who);
            question = own;
            engine e{comm};
            question = {};
            for (hvd::optimizer_options options : all_options()) {
                const auto with = trained(e, optimizers::sgd<double>{.rate = 0.002}, options);
                CHECK(own->take_answer() == (who < 0 ? answer::no : answer::yes));
                options.bucket_bytes = 1;
                CHECK(with == trained(comm, optimizers::sgd<double>{.rate = 0.002}, options));
            }
        }
    });
}

TEST_CASE("all ranks know the same answer after a join, whatever steps they have made") {
    using answer = hvd::detail::step_question::answer;
    hvd_test::on_ranks([](communicator& comm) {
        const auto own = hvd::detail::shared<hvd_test::asked_rank>::make(comm.rank() > 1);
        auto& question = hvd::detail::access::session_of(comm).question;
        question = own;
        engine e{comm};
        question = {};
        std::vector<float> x(4), g(4);
        hvd::distributed_optimizer optimizer(e, optimizers::sgd<float>{.rate = 1});
        optimizer.register_parameter("x", x, g);
        for (int step = 0; step < 2 * comm.rank(); ++step) optimizer.step();
        const int last = e.join().wait();
        const auto mine = std::uint8_t(own->take_answer());
        for (const std::uint8_t other : comm.allgather(mine).values) CHECK(other == mine);
        hvd::broadcast_parameters(optimizer, hvd::root{last});
        optimizer.step();
        CHECK(own->take_answer() == (comm.size() > 2 ? answer::yes : answer::no));
    });
}

TEST_CASE("gradients of the layers that the next forward pass needs first go first") {
    on_observed_ranks([](auto& comm) {
        hvd::engine e{comm, {.fusion_threshold = 0}};
        const std::vector<std::string> names = {"first", "second", "third", "fourth"};
        std::vector<std::vector<float>> x(4, std::vector<float>(8)), g = x;
        hvd::distributed_optimizer optimizer(e, optimizers::sgd<float>{.rate = 1});
        for (std::size_t i = 0; i < 4; ++i) optimizer.register_parameter(names[i], x[i], g[i]);
        // A step that is negotiated runs what is ready; one that is predicted has its order.
        bool went_in_order = false;
        for (int step = 0; step < 40; ++step) {
            optimizer.zero_gradients();
            comm.observer().take();
            for (std::size_t i = 4; i-- > 0;) optimizer.gradient_ready(i);
            optimizer.step();
            std::vector<std::string> ran = comm.observer().take();
            ran.resize(4);
            went_in_order = went_in_order || ran == names;
        }
        CHECK(went_in_order);
    });
}

TEST_CASE("the numbers of an optimizer are compared in the first step, and not again") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e{comm};
        for (const int first_with_own_rate : {0, 1, 2}) {
            std::vector<float> x(4), dx(4);
            hvd::distributed_optimizer optimizer(e, optimizers::adam<float>{.rate = 0.1f});
            optimizer.register_parameter("weight", x, dx);
            for (int step = 0; step < 3; ++step) {
                if (step == first_with_own_rate) optimizer.set_rate(float(comm.rank() + 1));
                optimizer.zero_gradients();
                dx.assign(4, 1);
                if (first_with_own_rate == 0 && comm.size() > 1) {
                    CHECK_THROWS_AS(optimizer.step(), hvd::mismatch_error);
                    break;
                }
                CHECK(optimizer.step());
            }
        }
    });
}

TEST_CASE("two optimizers on one engine step in turn") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e{comm};
        std::vector<float> x(4), dx(4), y(9), dy(9);
        hvd::distributed_optimizer one(e, optimizers::sgd<float>{.rate = 1});
        hvd::distributed_optimizer other(e, optimizers::adam<float>{.rate = 0.1f});
        one.register_parameter("weight", x, dx);
        other.register_parameter("weight", y, dy);
        for (int step = 0; step < steps; ++step) {
            one.zero_gradients();
            dx.assign(4, -1);
            one.gradient_ready(0);
            one.step();
            other.zero_gradients();
            dy.assign(9, 1);
            other.step();
        }
        CHECK(x[0] == steps);
        CHECK(y[8] == doctest::Approx(-0.1 * steps));
    });
}

TEST_CASE("a tape's gradients are combined by their names, or as one group") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e{comm};
        const float mean = float(comm.size() - 1) / 2;
        for (int step = 0; step < steps; ++step)
            for (const auto codec : std::initializer_list<hvd::gradient_codec>{
                     hvd::codec::none, hvd::codec::cast<hvd::bfloat16>}) {
                std::vector<std::vector<float>> g(5);
                std::vector<std::string> names;
                std::vector<hvd::tensor_view<float>> views;
                for (const std::size_t i : shuffled(g.size(), comm.rank(), step)) {
                    g[i].assign(i + 1, float(comm.rank()));
                    names.push_back("w" + std::to_string(i));
                    views.push_back(hvd::view(g[i].data(), g[i].size()));
                }
                hvd::distributed_gradients(e, names, views, {.postscale = 2, .codec = codec});
                for (const auto& x : g) CHECK(x.back() == doctest::Approx(2 * mean));
            }
        std::vector<float> a(3, float(comm.rank())), b(2, 1);
        const std::vector<hvd::tensor_view<float>> list = {hvd::view(a.data(), 3),
                                                           hvd::view(b.data(), 2)};
        hvd::distributed_gradients(e, list, {.op = hvd::sum});
        CHECK(a[1] == doctest::Approx(mean * float(comm.size())));
        hvd::local_parameters local;
        local.register_local(list[1]);
        b.assign(2, float(comm.size()));
        hvd::partial_distributed_gradients(e, list, list, local);
        CHECK(b[0] == 1);
    });
}

}  // namespace engine_tests
