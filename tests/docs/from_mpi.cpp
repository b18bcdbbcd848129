// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// This file contains every line of code of docs/from_mpi.md and
// docs/reference/names_of_mpi.md, so that it compiles and behaves as these say. pages.py looks for
// the lines.

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "hvd_test.hpp"

namespace from_mpi_tests {

using namespace std::chrono_literals;
using communicator = hvd_test::communicator;

#if defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("MPI's start and communicators have their form here") {
    int argc = 0;
    char** argv = nullptr;
    hvd::mpi_environment env{argc, argv};
    auto world = hvd::communicator<hvd::mpi>::world();
    MPI_Comm comm = MPI_COMM_WORLD, other = MPI_COMM_NULL;
    hvd::communicator<hvd::mpi> beside(comm, hvd::borrow);
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    hvd::communicator<hvd::direct<hvd::mpi>> owner(other, hvd::adopt);
    MPI_Comm handle = owner.native_handle();
    CHECK(handle == other);
    CHECK(beside.rank() == world.rank());
}
#endif

TEST_CASE("MPI's communicators that are made of others have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const int color = world.rank() % 2, key = -world.rank();
        auto part = world.split(color, key);
        auto node = world.local();
        auto some = world.subset({0});
        CHECK(bool(some) == (world.rank() == 0));
        CHECK(part.size() == (world.size() + 1 - color) / 2);
        CHECK(node.size() == world.local_size());
        int above = part.parent_rank(0);
        CHECK(above == (world.size() - 1 - color) / 2 * 2 + color);
        auto own = world.duplicate();
        own.barrier();
        own.abort("why");
        CHECK(own.is_given_up());
    });
}

TEST_CASE("MPI's messages between two ranks have their form here") {
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

TEST_CASE("MPI's reductions have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const auto size = float(world.size());
        std::vector<float> x(8, 1), out(8);
        world.allreduce(x, hvd::into(out), hvd::sum);
        CHECK(out.front() == size);
        world.allreduce(x, hvd::sum);
        CHECK(x == out);
        world.reduce(out, hvd::sum, hvd::root{0});
        CHECK(out.front() == (world.rank() == 0 ? size * size : size));
        std::vector<float> total(8);
        world.reduce(x, hvd::into(total), hvd::sum, hvd::root{0});
        auto part = world.reduce_scatter(x, hvd::sum);
        CHECK(std::all_of(part.begin(), part.end(), [&](float v) { return v == size * size; }));
        std::vector<int> counts(std::size_t(world.size()));
        counts.back() = 8;
        auto slice = world.reduce_scatter(x, hvd::sum, counts);
        CHECK(slice.size() == std::size_t(counts[std::size_t(world.rank())]));
        world.allreduce(x, [](float a, float b) { return std::max(a, b); });
        CHECK(x.front() == size);
        auto most = world.allreduce_with_rank(x, hvd::max);
        CHECK(most.front() == hvd::with_rank<float>{size, 0});
    });
}

TEST_CASE("MPI's prefix reductions have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const auto rank = float(world.rank());
        std::vector<float> x(8, 1), out(8, -1);
        world.scan(x, hvd::into(out), hvd::sum);
        CHECK(out == std::vector<float>(8, rank + 1));
        out.assign(8, -1);
        world.exscan(x, hvd::into(out), hvd::sum);
        CHECK(out == std::vector<float>(8, rank));
        world.scan(x, hvd::sum);
        CHECK(x == std::vector<float>(8, rank + 1));
        world.exscan(x, hvd::sum);
        CHECK(x == std::vector<float>(8, rank * (rank + 1) / 2));
    });
}

TEST_CASE("MPI's movements have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        const auto size = std::size_t(world.size());
        std::vector<int> x(size, world.rank()), everybodys(size * size), mine(1);
        auto all = world.allgather(x);
        world.allgather(x, hvd::into(everybodys));
        CHECK(all.values == everybodys);
        auto rows = world.gather(x, hvd::root{0});
        CHECK(rows.values.size() == (world.rank() == 0 ? size * size : 0));
        auto equal = world.alltoall(x);
        const std::vector<std::size_t> counts(size, 1);
        auto received = world.alltoall(x, counts);
        CHECK(equal.values == received.values);
        auto share = world.scatter(x, hvd::root{0});
        auto some = world.scatter(x, counts, hvd::root{0});
        CHECK(share == some);
        world.scatter(x, hvd::into(mine), hvd::root{0});
        CHECK(mine == share);
        world.broadcast(x, hvd::root{0});
        CHECK(x.front() == 0);
        world.barrier();
        const std::string object = std::to_string(world.rank());
        auto objects = world.allgather_object(object);
        CHECK(objects.back() == std::to_string(size - 1));
    });
}

TEST_CASE("MPI's non-blocking and persistent calls have their form here") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> x(8, 1);
        hvd::request pending = world.allreduce_async(x, hvd::sum);
        if (!pending.test()) pending.wait();
        std::vector<hvd::request> requests;
        for (int i = 0; i < 3; ++i) requests.push_back(world.barrier_async());
        std::size_t index = hvd::wait_any(requests);
        CHECK(index < 3);
        hvd::wait_all(requests);
        bool all = hvd::test_all(requests);
        CHECK(all);
        CHECK(x.front() == float(world.size()));
        auto plan = world.plan_allreduce(x, hvd::average);
        plan.run();
        plan.run();
        CHECK(x.front() == float(world.size()));
        world.allreduce(x, hvd::max, {.timeout = 30s});
    });
}

}  // namespace from_mpi_tests
