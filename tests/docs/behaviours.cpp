// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Behaviours that Horovod's own tests expect and no test of tests/collective covers.
// docs/reference/horovod_behaviours.md has the whole list.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "hvd_test.hpp"

namespace behaviours_tests {

using communicator = hvd_test::communicator;

namespace {

template <class Error, class F>
void check_refused(communicator& world, F f) {
    CHECK_THROWS_AS(f(), Error);
    int one = 1;  // the communicator works on
    world.allreduce(one, hvd::sum);
    CHECK(one == world.size());
}

std::size_t ragged(int rank) {
    const std::size_t sizes[] = {17, 32, 81, 12, 15, 23, 22};
    return sizes[rank % 7];
}

}  // namespace

TEST_CASE("rank and size are the launcher's") {
    hvd_test::on_ranks([](communicator& world) {
        CHECK(world.rank() >= 0);
        CHECK(world.rank() < world.size());
#if defined(HVD_TEST_BACKEND_MPI)
        CHECK(world.size() == hvd_test::launched_ranks());
        if (const char* rank = std::getenv("OMPI_COMM_WORLD_RANK"))
            CHECK(std::to_string(world.rank()) == rank);
#endif
        const auto ranks = world.allgather(world.rank());
        for (int r = 0; r < world.size(); ++r) CHECK(ranks.values[std::size_t(r)] == r);
    });
}

TEST_CASE("init after shutdown gives the same rank and size") {
    CHECK(!hvd::is_initialized());
    CHECK_THROWS_AS(hvd::rank(), hvd::usage_error);
    hvd::init();
    const int rank = hvd::rank(), size = hvd::size();
    hvd::shutdown();
    CHECK(!hvd::is_initialized());
    hvd::init();
    CHECK(hvd::is_initialized());
    CHECK(hvd::rank() == rank);
    CHECK(hvd::size() == size);
    hvd::shutdown();
}

TEST_CASE("allreduce: many calls in flight, not complete before they are, and all right") {
    hvd_test::on_ranks([](communicator& world) {
        const std::size_t many = 30;
        std::vector<std::vector<float>> x;
        for (std::size_t i = 0; i < many; ++i) x.emplace_back(17 * 17, float(i));
        std::vector<hvd::request> pending;
        // Rank 0 begins after the others have looked. Until then no rank's call can be complete.
        auto beside = world.split(0);
        if (world.rank() == 0) beside.barrier();
        pending.push_back(world.allreduce_async(x[0], hvd::sum));
        if (world.rank() != 0) {
            CHECK(!pending.back().test());
            beside.barrier();
        }
        for (std::size_t i = 1; i < many; ++i)
            pending.push_back(world.allreduce_async(x[i], hvd::sum, {.name = "gradient"}));
        for (hvd::request& call : pending) call.wait();
        for (std::size_t i = 0; i < many; ++i)
            CHECK(x[i] == std::vector<float>(17 * 17, float(i) * float(world.size())));
    });
}

TEST_CASE("allreduce: a group is summed, averaged, and reduced to minimum, maximum and product") {
    hvd_test::on_ranks([](communicator& world) {
        const float rank = float(world.rank()), size = float(world.size());
        std::vector<float> x(17, rank);
        std::vector<double> y(17 * 17, rank + 1);
        std::vector<std::int32_t> z(3, world.rank());
        world.allreduce(hvd::fuse(x, y, z), hvd::max);
        CHECK(x == std::vector<float>(17, size - 1));
        CHECK(y == std::vector<double>(17 * 17, size));
        CHECK(z == std::vector<std::int32_t>(3, world.size() - 1));
        world.allreduce(hvd::fuse(x, y), hvd::average);
        CHECK(x == std::vector<float>(17, size - 1));
        CHECK(y == std::vector<double>(17 * 17, size));
        world.allreduce(hvd::fuse(x, z), hvd::sum);
        CHECK(x == std::vector<float>(17, (size - 1) * size));
        CHECK(z == std::vector<std::int32_t>(3, (world.size() - 1) * world.size()));
        x.assign(17, rank + 1);
        y.assign(17 * 17, 2);
        world.allreduce(hvd::fuse(x, y), hvd::min);
        CHECK(x == std::vector<float>(17, 1));
        world.allreduce(hvd::fuse(x, y), hvd::product);
        CHECK(y.front() == double(1 << world.size()));
    });
}

TEST_CASE("allreduce: groups may be in flight") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> a(17, 1), b(5, 2), c(9, 3);
        auto first = world.allreduce_async(hvd::fuse(a, b), hvd::sum);
        auto second = world.allreduce_async(c, hvd::sum);
        second.wait();
        first.wait();
        CHECK(b == std::vector<float>(5, 2 * float(world.size())));
        CHECK(c == std::vector<float>(9, 3 * float(world.size())));
    });
}

TEST_CASE("allgather: a group gives a result for each tensor") {
    hvd_test::on_ranks([](communicator& world) {
        const std::vector<float> x(ragged(world.rank()), float(world.rank()));
        const std::vector<std::int64_t> y(2, world.rank());
        const auto [all_x, all_y] = world.allgather(hvd::fuse(x, y));
        for (int r = 0; r < world.size(); ++r) {
            CHECK(all_x.counts[std::size_t(r)] == ragged(r));
            CHECK(all_x.values[all_x.displacements[std::size_t(r)]] == float(r));
            CHECK(all_y.values[2 * std::size_t(r) + 1] == r);
        }
    });
}

TEST_CASE("several calls of one name may be in flight") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> x(17, 1), y(17, 2), z(17, float(world.rank()));
        auto first = world.allreduce_async(x, hvd::sum, {.name = "same"});
        auto second = world.allgather_async(y, {.name = "same"});
        auto third = world.broadcast_async(z, hvd::root{0}, {.name = "same"});
        auto fourth = world.reduce_scatter_async(y, hvd::max, {.name = "same"});
        first.wait();
        CHECK(second.wait().values.size() == 17 * std::size_t(world.size()));
        third.wait();
        fourth.wait();
        CHECK(x == std::vector<float>(17, float(world.size())));
        CHECK(z == std::vector<float>(17, 0));
    });
}

TEST_CASE("broadcast: several tensors at once, in place") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> x(17, float(world.rank()));
        std::vector<std::int64_t> y(3, world.rank());
        bool flags[2] = {world.rank() == world.size() - 1, false};
        world.broadcast(hvd::fuse(x, y, flags), hvd::root{world.size() - 1});
        CHECK(x == std::vector<float>(17, float(world.size() - 1)));
        CHECK(y == std::vector<std::int64_t>(3, world.size() - 1));
        CHECK(flags[0]);
    });
}

TEST_CASE("reduce_scatter: rows that do not divide go to the first ranks; alone and in a group") {
    hvd_test::on_ranks([](communicator& world) {
        const std::size_t size = std::size_t(world.size()), rest = size / 2, rows = 3 * size + rest;
        const std::size_t mine = 3 + (std::size_t(world.rank()) < rest ? 1 : 0);
        std::vector<float> x(rows * 5, 2), y(rows, 3);
        const auto part = world.reduce_scatter(hvd::view(x.data(), hvd::shape(rows, 5)), hvd::sum);
        CHECK(part == std::vector<float>(mine * 5, 2 * float(size)));
        const auto [part_x, part_y] = world.reduce_scatter(hvd::fuse(x, y), hvd::average);
        CHECK(part_y == std::vector<float>(mine, 3));
        CHECK(part_x.front() == 2);
    });
}

TEST_CASE("reduce_scatter: prescale and postscale, alone and in a group") {
    hvd_test::on_ranks([](communicator& world) {
        const std::size_t size = std::size_t(world.size());
        const std::vector<float> x(4 * size, 3), y(size, 1);
        CHECK(world.reduce_scatter(x, hvd::sum, {.prescale = 0.5}) ==
              std::vector<float>(4, 1.5f * float(size)));
        CHECK(world.reduce_scatter(x, hvd::sum, {.postscale = 2}) ==
              std::vector<float>(4, 6 * float(size)));
        const auto [part_x, part_y] =
            world.reduce_scatter(hvd::fuse(x, y), hvd::sum, {.prescale = 0.5, .postscale = 4});
        CHECK(part_x == std::vector<float>(4, 6 * float(size)));
        CHECK(part_y == std::vector<float>(1, 2 * float(size)));
    });
}

TEST_CASE("reduce_scatter: a variable goes to rank 0, the others get nothing") {
    hvd_test::on_ranks([](communicator& world) {
        const float x = 1;
        const auto part = world.reduce_scatter(x, hvd::sum);
        CHECK(part == std::vector<float>(world.rank() == 0 ? 1 : 0, float(world.size())));
    });
}

TEST_CASE("subsets: every collective on the even and on the odd ranks at once") {
    hvd_test::on_ranks_from(2, [](communicator& world) {
        std::vector<int> members[2];
        for (int r = 0; r < world.size(); ++r) members[r % 2].push_back(r);
        auto even = world.subset(members[0]), odd = world.subset(members[1]);
        CHECK(bool(even) == (world.rank() % 2 == 0));
        CHECK(bool(odd) == (world.rank() % 2 == 1));
        auto& mine = even ? even : odd;
        const auto& ranks = members[world.rank() % 2];
        const std::size_t size = ranks.size();
        CHECK(mine.size() == int(size));
        CHECK(ranks[std::size_t(mine.rank())] == world.rank());

        std::vector<int> x(size, world.rank());
        const int sum = std::accumulate(ranks.begin(), ranks.end(), 0);
        mine.allreduce(x, hvd::sum);
        CHECK(x == std::vector<int>(size, sum));
        std::vector<int> a(3, world.rank()), b(2, world.rank());
        mine.allreduce(hvd::fuse(a, b), hvd::sum);
        CHECK(b == std::vector<int>(2, sum));
        CHECK(mine.allgather(world.rank()).values == ranks);
        const auto [all_a, all_b] = mine.allgather(hvd::fuse(a, b));
        CHECK(all_a.values.size() == 3 * size);
        int root = world.rank();
        mine.broadcast(root, hvd::root{mine.size() - 1});  // the root is a rank of the subset
        CHECK(root == ranks.back());
        const std::vector<int> sent(size, world.rank());
        CHECK(mine.alltoall(sent).values == ranks);
        CHECK(mine.reduce_scatter(sent, hvd::sum) == std::vector<int>{sum});
        const auto [part, more] = mine.reduce_scatter(hvd::fuse(sent, sent), hvd::sum);
        CHECK(more == std::vector<int>{sum});
        CHECK(mine.allgather_object(std::to_string(world.rank())).back() ==
              std::to_string(ranks.back()));
        std::string text = std::to_string(world.rank());
        CHECK(mine.broadcast_object(text) == std::to_string(ranks.front()));
        mine.barrier();
    });
}

TEST_CASE("subsets: a barrier waits for its members alone") {
    hvd_test::on_ranks_from(2, [](communicator& world) {
        auto half = world.split(world.rank() % 2);
        // The even ranks come after the odd ones have left their barrier. If it waited for all, no
        // rank would go on.
        int told = 0;
        if (world.rank() % 2 == 1) half.barrier();
        if (world.rank() == 1) told = 1;
        world.broadcast(told, hvd::root{1});
        if (world.rank() % 2 == 0) half.barrier();
        CHECK(told == 1);
    });
}

TEST_CASE("a barrier comes after the collectives that are under way") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> a(10000, 1), b(10, 2);
        auto first = world.allreduce_async(a, hvd::sum);
        auto second = world.allreduce_async(b, hvd::sum);
        world.barrier();
        CHECK(first.test());
        CHECK(second.test());
        CHECK(a[9999] == float(world.size()));
        CHECK(b[9] == 2 * float(world.size()));
    });
}

TEST_CASE("subsets: calls of ranks that are not members are refused") {
    hvd_test::on_ranks_from(2, [](communicator& world) {
        auto first = world.subset({0});
        if (world.rank() == 0) return;
        CHECK(first.rank() == -1);
        CHECK(first.size() == 0);
        CHECK_THROWS_AS(first.barrier(), hvd::usage_error);
    });
}

TEST_CASE(
    "subsets: the order of the list does not matter; what is no rank, or stands twice, is "
    "refused") {
    hvd_test::on_ranks_from(2, [](communicator& world) {
        const auto there = world.subset({0, 1}), back = world.subset({1, 0});
        CHECK(there.rank() == back.rank());
        check_refused<hvd::usage_error>(world, [&] { world.subset({0, 0}); });
        check_refused<hvd::usage_error>(world, [&] { world.subset({0, world.size()}); });
    });
}

TEST_CASE(
    "subsets: are made and dropped at any time, also of subsets, and lists that differ are "
    "refused") {
    hvd_test::on_ranks_from(2, [](communicator& world) {
        for (int round = 0; round < 5; ++round) {
            auto some = world.subset({0, 1});
            if (!some) continue;
            auto one = some.subset({1});
            CHECK(bool(one) == (some.rank() == 1));
            int x = 1;
            some.allreduce(x, hvd::sum);
            CHECK(x == 2);
        }
        check_refused<hvd::mismatch_error>(world, [&] { world.subset({world.rank() % 2}); });
    });
}

TEST_CASE("the minimum and the maximum of two zeros are the first zero in rank order") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> x(2, world.rank() == 0 ? 0.0f : -0.0f);
        world.allreduce(hvd::view(x.data(), 1), hvd::min);
        world.allreduce(hvd::view(x.data() + 1, 1), hvd::max);
        CHECK(!std::signbit(x[0]));
        CHECK(!std::signbit(x[1]));
    });
}

TEST_CASE("a plan and its calls have the same bits") {
    hvd_test::on_ranks([](communicator& world) {
        std::vector<float> called, planned;
        for (int i = 0; i < 1000; ++i) called.push_back(1.0f / float(3 * i + world.rank() + 1));
        planned = called;
        std::vector<float> other(5, 1);
        auto plan = world.plan_allreduce(hvd::fuse(other, planned), hvd::average);
        plan.run();
        world.allreduce(called, hvd::average);
        CHECK(called == planned);
    });
}

}  // namespace behaviours_tests
