// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// This file contains every line of code of docs/from_horovod.md and
// docs/reference/names_of_horovod.md, so that it compiles and behaves as these say.
// pages.py looks for the lines.

#include <hvd/autotune.hpp>
#include <hvd/checkpoint.hpp>
#include <hvd/settings.hpp>
#include <hvd/timeline.hpp>
#include <hvd/train.hpp>
#include <hvd/train_engine.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../train/shared_folder.hpp"
#include "temporary_directory.hpp"
#include "variables.hpp"

namespace from_horovod_tests {

using communicator = hvd_test::communicator;

TEST_CASE("Horovod's topology has its form here") {
    hvd_test::on_ranks([](communicator& world) {
        CHECK(world.rank() < world.size());
        CHECK(world.local_rank() < world.local_size());
        CHECK(world.cross_rank() < world.cross_size());
        CHECK(world.is_homogeneous());
    });
}

TEST_CASE("Horovod's process-wide calls have their form here") {
    hvd::init();
    CHECK(hvd::is_initialized());
    CHECK(hvd::rank() < hvd::size());
    CHECK(hvd::local_rank() < hvd::local_size());
    CHECK(hvd::cross_rank() < hvd::cross_size());
    CHECK(hvd::cross_rank() == hvd::world().cross_rank());
    CHECK(hvd::cross_size() == hvd::world().cross_size());
    CHECK(hvd::is_homogeneous());
    hvd::shutdown();
    CHECK(!hvd::is_initialized());
    CHECK_THROWS_AS(hvd::cross_rank(), hvd::usage_error);
    CHECK_THROWS_AS(hvd::cross_size(), hvd::usage_error);
    CHECK_THROWS_AS(hvd::is_homogeneous(), hvd::usage_error);
}

#if defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("Horovod's init has its form here") {
    int argc = 0;
    char** argv = nullptr;
    hvd::mpi_environment env{argc, argv};
    auto world = hvd::communicator<hvd::mpi>::world();
    hvd::communicator<hvd::mpi> beside(MPI_COMM_WORLD, hvd::borrow);
    CHECK(beside.rank() == world.rank());
    CHECK(env.thread_level() == hvd::thread_level::multiple);
}
#endif

TEST_CASE("Horovod's reductions have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const int size = world.size();
        std::vector<float> x(4, 2), y(3, 2), out(4);
        std::vector<int> n(4, 2);
        world.allreduce(x, hvd::into(out), hvd::average);
        CHECK(out == x);
        world.allreduce(x, hvd::average);
        world.allreduce(n, hvd::average(hvd::rounding::toward_zero));
        CHECK(n.front() == 2);
        world.allreduce(x, hvd::min);
        world.allreduce(x, hvd::max);
        world.allreduce(hvd::fuse(x, y), hvd::average);
        CHECK(x.front() == 2);
        CHECK(y.front() == 2);
        world.allreduce(x, hvd::sum);
        CHECK(x.front() == 2.0f * float(size));
        world.allreduce(x, hvd::sum, {.prescale = 0.5, .postscale = 2.0});
        world.allreduce(x, hvd::sum, {.name = "conv1"});
        world.allreduce(x, hvd::product);
        world.reduce(x, hvd::sum, hvd::root{0});

        hvd::request pending = world.allreduce_async(x, hvd::average);
        while (!pending.test()) continue;
        pending.wait();
    });
}

TEST_CASE("Horovod's other collectives have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const std::size_t size = std::size_t(world.size());
        std::vector<float> x(2 * size, 1), y(3 * size, 1), out(2 * size);
        auto all = world.allgather(x);
        CHECK(all.values.size() == 2 * size * size);
        auto [all_x, all_y] = world.allgather(hvd::fuse(x, y));
        CHECK(all_y.values.size() == 3 * size * size);
        world.broadcast(x, hvd::root{0});
        world.broadcast(x, hvd::into(out), hvd::root{0});
        CHECK(out == x);
        world.broadcast(hvd::fuse(x, y), hvd::root{0});

        auto equal = world.alltoall(x);
        CHECK(equal.values.size() == 2 * size);
        const std::vector<int> counts(size, 2);
        auto received = world.alltoall(x, counts);
        CHECK(received.counts == std::vector<std::size_t>(size, 2));

        auto part = world.reduce_scatter(x, hvd::average);
        CHECK(part == std::vector<float>(2, 1));
        auto [part_x, part_y] = world.reduce_scatter(hvd::fuse(x, y), hvd::average);
        CHECK(part_y == std::vector<float>(3, 1));
        world.barrier();
        world.gather(x, hvd::root{0});
        world.scatter(x, hvd::root{0});

        std::string object = world.rank() == 0 ? "state" : "";
        world.broadcast_object(object, hvd::root{0});
        auto objects = world.allgather_object(object);
        CHECK(objects == std::vector<std::string>(size, "state"));
    });
}

TEST_CASE("Horovod's training has its form here") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> w(4, 1), dw(4, 1), table(6), d_table(6), x(4, 1);
        const hvd::sparse_view<float> rows;
        world.allreduce(x, hvd::adasum);
        CHECK(x.front() == doctest::Approx(1));
        auto mean = hvd::sparse_allreduce(world, rows, 3, 2);
        CHECK(mean.indices.empty());

        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.5f});
        optimizer.register_parameter("w", w, dw);
        const std::size_t i = optimizer.register_sparse("table", table, d_table, 2);
        hvd::broadcast_parameters(optimizer);
        hvd::broadcast_optimizer_state(optimizer);
        optimizer.gradient_ready(0);
        optimizer.gradient_ready(i, rows);
        optimizer.step();
        CHECK(w.front() == doctest::Approx(0.5));
        {
            const auto quiet = optimizer.no_sync();
            optimizer.gradient_ready(0);
        }
        optimizer.zero_gradients();
        optimizer.nothing_ready(0);
        optimizer.step();
        CHECK(w.front() == doctest::Approx(0.5));
        dw.assign(4, 1);

        std::vector<hvd::tensor_view<float>> gradients = {hvd::view(dw.data(), dw.size())};
        hvd::distributed_gradients(world, gradients);
        hvd::distributed_gradients(world, gradients, {.codec = hvd::codec::cast<hvd::float16>});
        CHECK(dw.front() == doctest::Approx(1));

        const std::size_t samples = 9, batch = 2;
        hvd::sharded_sampler sampler(samples, world);
        hvd::sharded_sampler even(samples, world, {.uneven = hvd::uneven_samples::drop});
        CHECK(even.size() == samples / std::size_t(world.size()));
        for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
            sampler.begin_epoch({.epoch = epoch});
            optimizer.begin_epoch(epoch);
            const std::size_t steps = 1;
            sampler.begin_epoch({.epoch = epoch, .done = sampler.done_after(steps, batch)});
            optimizer.step();
        }
        CHECK(sampler.steps(batch) == (sampler.size() + 1) / 2);

        hvd::uneven_scope scope(world);
        int steps = 0;
        x.assign(4, float(world.rank()));
        for (; scope.begin_step(steps == 0 && world.rank() > 0 ? 1 : 0); ++steps) scope.mean(x);
        CHECK(steps == (world.size() > 1 ? 1 : 0));
        if (steps > 0)
            // the mean over the ranks from 1 on
            CHECK(x.front() == doctest::Approx(world.size() / 2.0));
    });
}

TEST_CASE("Horovod's options of an optimizer have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        for (const auto& options :
             {hvd::optimizer_options{.codec = hvd::codec::cast<hvd::float16>},
              hvd::optimizer_options{.backward_passes_per_step = 4, .average_passes = true},
              hvd::optimizer_options{.gradient_predivide_factor = 2.0},
              hvd::optimizer_options{.groups = {{0, 1}}},
              hvd::optimizer_options{.bucket_bytes = 1 << 20},
              hvd::optimizer_options{.op = hvd::adasum},
              hvd::optimizer_options{.scale_local_gradients = false}}) {
            std::vector<float> w(4, 1), dw(4, 1), v(2, 1), dv(2, 1);
            hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.5f},
                                                 options);
            optimizer.register_parameter("w", w, dw);
            optimizer.register_parameter("v", v, dv);
            optimizer.step();
            const double step = 0.5 / (options.average_passes ? 4 : 1);
            CHECK(w.back() == doctest::Approx(1 - step));
            CHECK(v.back() == doctest::Approx(1 - step));
        }
    });
}

TEST_CASE("Horovod's steps in two halves and its local variables have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> table(6), d_table(6), head(2, 1), d_head(2, float(world.size()));
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.5f});
        optimizer.register_local("head", head, d_head);
        optimizer.register_sparse("rows", table, d_table, 2, hvd::sparse_policy::dense);
        const hvd::sparse_rows<float> row = {{1}, {30, 40}};
        optimizer.gradient_ready(1, row);
        auto averaged = optimizer.synchronize();
        hvd::clip_by_norm(averaged, 1.0);
        optimizer.apply(std::move(averaged));
        CHECK(table[2] == doctest::Approx(-0.3));
        CHECK(head[0] == doctest::Approx(0.5));  // its gradient was divided by the ranks

        std::vector<hvd::tensor_view<float>> gradients = {hvd::view(head.data(), head.size())};
        hvd::local_parameters local;
        local.register_local(table);
        const std::vector parameters = {hvd::view(table.data(), table.size())};
        hvd::partial_distributed_gradients(world, parameters, gradients, local);
        CHECK(head[1] == doctest::Approx(0.5 / world.size()));
    });
}

TEST_CASE("Horovod's batch norm and callbacks have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const std::vector<float> x = {1, 2, 3, 4}, dy = {1, 1, 1, 1};
        std::vector<float> y(4), dx(4);
        hvd::sync_batch_norm<float> norm(2);
        norm.forward(world, x, y);
        norm.backward(world, dy, dx);
        CHECK(y[0] == doctest::Approx(-1).epsilon(0.01));
        norm.evaluate(x, y);

        const double epoch = 2, count = world.rank() + 1;
        std::vector<hvd::metric> metrics = {{"loss", 3.0}};
        hvd::average_metrics(world, metrics, count);
        const double rate = hvd::scale_rate(0.1, {.ranks = world.size()});
        CHECK(rate * hvd::warmup_factor(epoch, {.ranks = world.size(), .epochs = 5}) <= rate);
        const hvd::rate_schedule late{0.1, {.start_epoch = 30}};
        CHECK(late.factor_at(epoch) == 1);
        const auto report = [](const std::vector<hvd::metric>& all) {
            CHECK(all[0].mean == doctest::Approx(3));
        };
        hvd::on_root(world, [&] { report(metrics); });

        hvd::optimizers::sgd<float> inside;
        hvd::set_rate_with_momentum_correction(inside, inside.velocity, rate);
        CHECK(inside.rate == float(rate));
    });
}

TEST_CASE("Horovod's data and files have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const hvd_test::shared_folder folder(world);
        const std::string path = folder / "best.safetensors";
        std::vector<float> w(4, 1), dw(4, 1);
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.momentum = 0.9f});
        optimizer.register_parameter("w", w, dw);
        std::vector<hvd::metric> metrics = {{"accuracy", 0.9}};
        hvd::training_progress progress{.epoch = 3, .samples_done = 6};
        hvd::best_so_far best(hvd::best_so_far::direction::up);
        if (best.improves(metrics[0].mean)) hvd::save_checkpoint(path, optimizer, progress);
        w[0] = 0;
        progress = hvd::load_checkpoint(path, optimizer);
        CHECK(w[0] == 1);

        hvd::sharded_sampler sampler(12, world);
        sampler.begin_epoch({.epoch = progress.epoch, .done = progress.samples_done});
        std::size_t left = sampler.size();
        auto next_batch = [&]() -> std::optional<std::size_t> {
            return left > 0 ? std::optional(left--) : std::nullopt;
        };
        hvd::background_loader loader(next_batch);
        std::size_t batches = 0;
        while (loader.next()) ++batches;
        CHECK(batches == sampler.size());

        hvd::uneven_scope scope(world);
        std::size_t samples = world.rank() == 0 ? 1 : 0, steps = 0;
        std::vector<float> gradient(4, 1);
        while (scope.begin_step(samples)) {
            scope.weigh(gradient);
            samples = 0;
            ++steps;
        }
        CHECK(steps == 1);
    });
}

TEST_CASE("Horovod's process sets have their form here") {
    hvd_test::on_ranks_from(3, [](communicator& world) {
        std::vector<int> x(1, 1);
        auto some = world.subset({0, 2});
        CHECK(bool(some) == (world.rank() == 0 || world.rank() == 2));
        if (some) some.allreduce(x, hvd::sum);
        CHECK(x.front() == (some ? 2 : 1));
        if (some) CHECK(some.rank() < some.size());
        if (some) CHECK(some.parent_rank(0) == 0);
        if (some) CHECK(some.parent_rank(1) == 2);
        world.split(world.rank() % 2);
    });
}

TEST_CASE("Horovod's names, join and autotune have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        hvd::engine engine{world};
        std::vector<float> x(1, 1);
        hvd::distributed_optimizer by_name(engine, hvd::optimizers::sgd<float>{.rate = 0.5f});
        const std::vector<std::string> names = {"gradient"};
        const std::vector<hvd::tensor_view<float>> gradients = {hvd::view(x.data(), x.size())};
        hvd::distributed_gradients(engine, names, gradients);
        if (world.rank() > 0) engine.allreduce("x", x, hvd::average).wait();
        engine.join().wait();
        hvd::autotune tuner{engine};
        tuner.step();
        CHECK(x[0] == 1);
    });
}

TEST_CASE("Horovod's timeline has its form here") {
    const hvd_test::temporary_directory folder;
    const std::string file = (folder / "run.json").string();
    auto observed = hvd::communicator<hvd::observed<hvd::threads, hvd::timeline>>::self();
    hvd::start_timeline(observed, {.file = file});
    CHECK(hvd::stop_timeline(observed).bytes > 0);
}

TEST_CASE("Horovod's variables have their form here") {
    const hvd_test::variables guard(hvd_test::values{{"HVD_CPUS", "0"}});
    auto options = hvd::options_from_environment();
    CHECK(options.cpus == std::vector<int>{0});
}

}  // namespace from_horovod_tests
