// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <vector>

#include "allocations.hpp"
#include "hvd_test.hpp"

namespace {

constexpr int times = 10, tries = 3;

// Returns the least allocations of `times` calls, after one that warms up. On a busy machine a rank
// may wait so long in one of them that it notes who is missing, which allocates.
template <class F>
std::size_t allocations_of(F call) {
    call();
    std::size_t least = std::size_t(-1);
    for (int i = 0; i < tries; ++i) {
        const std::size_t before = hvd_test::allocations();
        for (int j = 0; j < times; ++j) call();
        least = std::min(least, hvd_test::allocations() - before);
    }
    return least;
}

// Runs f on one node, and on MPI also with messages between nodes of one and of two ranks.
template <class F>
void on_nodes(F f) {
    hvd_test::on_ranks(f);
#if defined(HVD_TEST_BACKEND_MPI)
    for (const int node_size : {1, 2}) {
        const hvd_test::failing_rank_does_not_hang guard;
        INFO("with nodes of ", node_size, " ranks");
        auto comm = hvd_test::communicator::world({.node_size = node_size});
        f(comm);
    }
#endif
}

}  // namespace

TEST_CASE("a plan runs without allocating") {
    on_nodes([](auto& comm) {
        std::vector<float> a(100000), b(10);
        std::vector<int> c(100);
        auto sum = comm.plan_allreduce(hvd::fuse(a, b, c), hvd::sum);
        auto send = comm.plan_broadcast(hvd::fuse(a, b, c), hvd::root{0});
        CHECK(allocations_of([&] { sum.run(); }) == 0);
        CHECK(allocations_of([&] { send.run(); }) == 0);
    });
}

TEST_CASE("repeated blocking calls of the same shape do not allocate") {
    on_nodes([](auto& comm) {
        const std::size_t size = std::size_t(comm.size());
        std::vector<float> x(size * 100000), all(size * size * 100000), part(100000);
        CHECK(allocations_of([&] { comm.allreduce(x, hvd::sum); }) == 0);
        CHECK(allocations_of([&] { comm.allreduce(hvd::view(x.data(), 10), hvd::sum); }) == 0);
        CHECK(allocations_of([&] { comm.allreduce(hvd::fuse(x, part), hvd::average); }) == 0);
        CHECK(allocations_of([&] { comm.broadcast(x, hvd::root{0}); }) == 0);
        CHECK(allocations_of([&] { comm.allgather(x, hvd::into(all)); }) == 0);
        CHECK(allocations_of([&] { comm.reduce_scatter(x, hvd::sum, hvd::into(part)); }) == 0);
        CHECK(allocations_of([&] { comm.barrier(); }) == 0);
        std::vector<double> d(size), all_d(size * size), part_d(1);
        CHECK(allocations_of(
                  [&] { comm.allgather(hvd::fuse(x, d), hvd::into(hvd::fuse(all, all_d))); }) == 0);
        CHECK(allocations_of([&] {
                  comm.reduce_scatter(hvd::fuse(x, d), hvd::sum,
                                      hvd::into(hvd::fuse(part, part_d)));
              }) == 0);
        CHECK(allocations_of([&] { comm.broadcast(hvd::fuse(x, d), hvd::root{0}); }) == 0);
        CHECK(allocations_of(
                  [&] { comm.scatter(hvd::fuse(x, d), hvd::into(hvd::fuse(part, part_d))); }) == 0);
        std::vector<float> came(x.size());
        std::vector<double> came_d(size);
        CHECK(allocations_of([&] {
                  comm.alltoall(hvd::fuse(x, d), hvd::into(hvd::fuse(came, came_d)));
              }) == 0);
        const std::vector<int> counts(size, 1);
        CHECK(allocations_of(
                  [&] { comm.alltoall(d, counts, hvd::into(std::span(all_d).first(size))); }) == 0);
        CHECK(allocations_of([&] { comm.alltoall(d, hvd::into(std::span(all_d).first(size))); }) ==
              0);
        CHECK(allocations_of([&] { comm.scatter(d, counts, hvd::into(part_d)); }) == 0);
        CHECK(allocations_of([&] { comm.scatter(d, hvd::into(part_d)); }) == 0);
    });
}
