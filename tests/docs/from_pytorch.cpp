// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// This file contains every line of code of docs/from_pytorch.md and
// docs/reference/names_of_pytorch.md, so that it compiles and behaves as these say.
// pages.py looks for the lines.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <complex>
#include <string>
#include <utility>
#include <vector>

#include <hvd/checkpoint.hpp>
#include <hvd/tcp.hpp>
#include <hvd/threads.hpp>
#include <hvd/train.hpp>

#include "../train/shared_folder.hpp"

namespace from_pytorch_tests {

using namespace std::chrono_literals;
using communicator = hvd_test::communicator;

#if defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("PyTorch's start with MPI has its form here") {
    int argc = 0;
    char** argv = nullptr;
    hvd::mpi_environment env{argc, argv};
    CHECK(!env.owns_mpi());
}
#else
TEST_CASE("PyTorch's start has its form here") {
    {
        auto world = hvd::communicator<hvd::tcp>::world();
        CHECK(world.size() == 1);
        auto patient = hvd::communicator<hvd::tcp>::world({.timeout = 600s});
        CHECK(patient.size() == 1);
        hvd::tcp_options own;
        CHECK(own.rendezvous.empty());
        CHECK(own.rank < own.size);
    }
    std::atomic<int> trained = 0;
    const auto train = [&](hvd::communicator<hvd::threads>& world) { trained += world.size(); };
    hvd::run_threads(2, train);
    CHECK(trained == 4);
}
#endif

TEST_CASE("PyTorch's messages between two ranks have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const std::vector<int> x(3, 7);
        std::vector<int> y(3);
        if (world.size() < 2) return;
        if (world.rank() == 0) world.send(x, hvd::peer{1});
        if (world.rank() == 1) {
            world.recv(hvd::into(y), hvd::peer{0});
            CHECK(y == x);
        }
    });
}

TEST_CASE("PyTorch's process-wide group has its form here") {
    hvd::init();
    CHECK(hvd::is_initialized());
    hvd::shutdown();
    CHECK(!hvd::is_initialized());
}

TEST_CASE("PyTorch's groups have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const int rank = world.rank(), size = world.size();
        CHECK(world.local_rank() < world.local_size());
        CHECK(world.cross_rank() < world.cross_size());
        auto pair = world.split(world.rank() / 2);
        CHECK(pair.rank() == rank % 2);
        const int color = rank % 2, key = -rank;
        auto part = world.split(color, key);
        int above = part.parent_rank(0);
        CHECK(above == (size - 1 - color) / 2 * 2 + color);
        CHECK(part.parent_rank(part.rank()) == rank);

        auto rows = world.split(world.rank() / 2);
        auto columns = world.split(world.rank() % 2);
        CHECK(rows.rank() == rank % 2);
        CHECK(rows.size() == std::min(2, size - rank / 2 * 2));
        CHECK(columns.rank() == rank / 2);
        CHECK(world.cross().size() == world.cross_size());
        CHECK(world.local().size() == world.local_size());

        std::string object = pair.rank() == 0 ? "of pair " + std::to_string(rank / 2) : "";
        pair.broadcast_object(object, hvd::root{0});
        CHECK(object == "of pair " + std::to_string(rank / 2));

        auto own = world.duplicate();
        own.barrier();
        own.abort("why");
        CHECK(own.is_given_up());
    });
    hvd_test::on_ranks_from(3, [](communicator& world) {
        auto some = world.subset({0, 2});
        CHECK(bool(some) == (world.rank() == 0 || world.rank() == 2));
    });
}

TEST_CASE("PyTorch's reductions have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const auto size = float(world.size()), rank = float(world.rank());
        const float total = size * (size + 1) / 2;
        std::vector<float> x(8, rank + 1), y(3, rank + 1);
        world.allreduce(x, hvd::sum);
        CHECK(x == std::vector<float>(8, total));
        world.allreduce(x, hvd::sum, {.prescale = 0.5});
        CHECK(x == std::vector<float>(8, total * size / 2));
        world.allreduce(x, hvd::max, {.name = "loss", .timeout = 30s});
        world.allreduce(hvd::fuse(x, y), hvd::sum);
        CHECK(x == std::vector<float>(8, total * size * size / 2));
        CHECK(y == std::vector<float>(3, total));
        world.reduce(x, hvd::sum, hvd::root{0});
        CHECK(x[7] == total * size * size / 2 * (rank == 0 ? size : 1));
        x.assign(std::size_t(world.size()), rank);
        auto slice = world.reduce_scatter(x, hvd::sum);
        CHECK(slice == std::vector<float>{size * (size - 1) / 2});
        std::vector<std::size_t> counts(std::size_t(world.size()));
        counts.back() = x.size();
        const auto mine = world.reduce_scatter(x, hvd::sum, counts);
        CHECK(mine.size() == (rank + 1 == size ? x.size() : 0));
    });
    static_assert(hvd::reducible<std::complex<float>, hvd::op::sum, hvd::threads>);
    static_assert(!hvd::reducible<std::complex<float>, hvd::op::max, hvd::threads>);
}

TEST_CASE("PyTorch's movements have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const auto size = std::size_t(world.size()), rank = std::size_t(world.rank());
        std::vector<int> x(size, world.rank()), y(3, world.rank()), everybodys(size * size);
        auto all = world.allgather(x);
        world.allgather(x, hvd::into(everybodys));
        CHECK(all.values == everybodys);
        for (std::size_t r = 0; r < size; ++r) CHECK(all[r].front() == int(r));
        auto [all_x, all_y] = world.allgather(hvd::fuse(x, y));
        CHECK(all_x.values == everybodys);
        CHECK(all_y.values.back() == world.size() - 1);
        auto gathered = world.gather(x, hvd::root{0});
        CHECK(gathered.values.size() == (rank == 0 ? size * size : 0));
        {
            auto received = world.alltoall(x);
            CHECK(received.values.size() == size);
            CHECK(received.values.back() == world.size() - 1);
        }
        const std::vector<std::size_t> counts(size, 1);
        auto received = world.alltoall(x, counts);
        CHECK(received.values.front() == 0);
        std::vector<int> ranks = received.values;
        std::swap(x, ranks);
        auto share = world.scatter(x, hvd::root{0});
        CHECK(share == std::vector<int>{world.rank()});
        world.broadcast(x, hvd::root{0});
        CHECK(x.back() == world.size() - 1);
        world.barrier();
        world.barrier({.timeout = 30s});
    });
}

TEST_CASE("PyTorch's objects have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const auto size = std::size_t(world.size());
        std::string object = std::to_string(world.rank());
        std::vector<std::string> expected;
        for (std::size_t r = 0; r < size; ++r) expected.push_back(std::to_string(r));
        auto objects = world.allgather_object(object);
        CHECK(objects == expected);
        auto at_root = world.gather_object(object, hvd::root{0});
        CHECK(at_root.size() == (world.rank() == 0 ? size : 0));
        auto mine = world.scatter_object(objects, hvd::root{0});
        CHECK(mine == object);
        world.broadcast_object(object, hvd::root{0});
        CHECK(object == "0");
        int stops = 0;
        const auto stop = [&] { ++stops; };
        hvd::on_root(world, [&] { stop(); });
        CHECK(stops == (world.rank() == 0 ? 1 : 0));
    });
}

TEST_CASE("PyTorch's work has its form here") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> x(8, 1);
        hvd::request pending = world.allreduce_async(x, hvd::sum);
        while (!pending.test()) continue;
        pending.wait();
        CHECK(x[7] == float(world.size()));
        pending = world.barrier_async();
        CHECK(pending.wait_for(30s));
        std::vector<hvd::request> requests;
        for (int i = 0; i < 3; ++i) requests.push_back(world.barrier_async());
        std::size_t index = hvd::wait_any(requests);
        CHECK(index < 3);
        hvd::wait_all(requests);
        CHECK(hvd::test_all(requests));
    });
}

TEST_CASE("DistributedDataParallel has its form here") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> w(4, float(world.rank() + 1)), dw(4, float(world.rank())), head(2, 1),
            d_head(2, 0), mean(3, float(world.rank()));
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.5f});
        optimizer.register_parameter("w", w, dw);
        optimizer.register_local("head", head, d_head);
        optimizer.register_buffer("mean", mean, hvd::buffer_policy::from_root);
        hvd::broadcast_parameters(optimizer);
        CHECK(w == std::vector<float>(4, 1));
        mean.assign(3, float(world.rank()));
        hvd::synchronize_buffers(optimizer);
        CHECK(mean == std::vector<float>(3, 0));

        optimizer.gradient_ready(0);
        auto gradients = optimizer.synchronize();
        const double norm = 2 * (world.size() - 1) / 2.0;  // of four means of the ranks
        CHECK(hvd::global_norm(gradients) == doctest::Approx(norm));
        hvd::clip_by_norm(gradients, 1.0);
        optimizer.apply(std::move(gradients));
        const float step = world.size() > 1 ? 0.25f : 0;  // half of a norm of 1, by four elements
        CHECK(w[3] == doctest::Approx(1 - step));
        {
            const auto quiet = optimizer.no_sync();
            optimizer.gradient_ready(0);
        }
        optimizer.zero_gradients();
        optimizer.nothing_ready(0);
        optimizer.step();
        CHECK(w[3] == doctest::Approx(1 - step));
        CHECK(optimizer.unreported().empty());
        world.allreduce(w, hvd::average);
        CHECK(w[3] == doctest::Approx(1 - step));
    });
}

TEST_CASE("DistributedDataParallel's options have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        for (const auto& options :
             {hvd::optimizer_options{.synchronize_buffers = true},
              hvd::optimizer_options{.bucket_bytes = 25 << 20},
              hvd::optimizer_options{.order = hvd::bucket_order::learnt_once},
              hvd::optimizer_options{.groups = {{0, 1}}},
              hvd::optimizer_options{.may_be_unreported = {1}},
              hvd::optimizer_options{.backward_passes_per_step = 4},
              hvd::optimizer_options{.codec = hvd::codec::cast<hvd::float16>},
              hvd::optimizer_options{.codec = hvd::codec::cast<hvd::bfloat16>}}) {
            const auto rank = float(world.rank());
            std::vector<float> w(4, 1), dw(4, rank), v(2, 1), dv(2, rank);
            hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.5f},
                                                 options);
            optimizer.register_parameter("w", w, dw);
            optimizer.register_parameter("v", v, dv);
            optimizer.step();
            CHECK(w.back() == doctest::Approx(1 - 0.25 * (world.size() - 1)));
            CHECK(v.back() == w.back());
        }
    });
    const auto sharded = hvd::optimizer_options{.shard_state = true};
    CHECK(sharded.shard_state);
}

TEST_CASE("PyTorch's join has its form here") {
    hvd_test::on_ranks([](communicator& world) {
        hvd::uneven_scope scope(world);
        std::size_t samples = std::size_t(world.rank()), steps = 0;
        std::vector<float> dw(4, 1);
        while (scope.begin_step(samples)) {
            scope.weigh(dw);
            samples = 0;
            ++steps;
        }
        CHECK(steps == (world.size() > 1 ? 1 : 0));
        hvd::uneven_scope fixed(world, hvd::join_mode::divide_by_size);
        CHECK(!fixed.begin_step(0));
    });
}

TEST_CASE("DistributedSampler has its form here") {
    hvd_test::on_ranks([](communicator& world) {
        const std::size_t samples = 9, ranks = std::size_t(world.size()), epoch = 1, done = ranks;
        hvd::sharded_sampler sampler(samples, world);
        CHECK(sampler.size() == (samples + ranks - 1) / ranks);
        hvd::sharded_sampler third(samples, hvd::part{.rank = 2, .size = 4});
        CHECK(third.size() == 3);
        hvd::sharded_sampler in_order(samples, world, {.shuffle = false, .seed = 7});
        in_order.begin_epoch({.epoch = epoch});
        CHECK(*in_order.indices().begin() == std::size_t(world.rank()));
        hvd::sharded_sampler even(samples, world, {.uneven = hvd::uneven_samples::drop});
        CHECK(even.size() == samples / ranks);
        sampler.begin_epoch({.epoch = epoch});
        const std::size_t whole = sampler.size();
        sampler.begin_epoch({.epoch = epoch, .done = done});
        CHECK(sampler.size() == whole - 1);
    });
}

TEST_CASE("PyTorch's batch norm and checkpoints have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        hvd::sync_batch_norm<float> norm(2);
        const std::vector<float> x = {1, 2, 3, 4};
        std::vector<float> y(4);
        norm.forward(world, x, y);
        CHECK(y[0] == doctest::Approx(-1).epsilon(0.01));

        const hvd_test::shared_folder folder(world);
        const std::string path = folder / "model.safetensors";
        std::vector<float> w(4, 1), dw(4, 1);
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.5f});
        optimizer.register_parameter("w", w, dw);
        hvd::training_progress progress{.epoch = 3};
        hvd::save_checkpoint(path, optimizer, progress);
        w[0] = 0;
        progress = hvd::load_checkpoint(path, optimizer);
        CHECK(w[0] == 1);
        CHECK(progress.epoch == 3);
    });
}

}  // namespace from_pytorch_tests
