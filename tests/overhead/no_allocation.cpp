// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <vector>

#include "allocations.hpp"
#include "hvd_test.hpp"

namespace {

constexpr int times = 10;

// The allocations of `times` calls after one that warms up.
template <class F>
std::size_t allocations_of(F call) {
    call();
    const std::size_t before = hvd_test::allocations();
    for (int i = 0; i < times; ++i) call();
    return hvd_test::allocations() - before;
}

}  // namespace

TEST_CASE("a plan runs without allocating") {
    hvd_test::on_ranks([](auto& comm) {
        std::vector<float> a(1000), b(10);
        std::vector<int> c(100);
        auto sum = comm.plan_allreduce(hvd::fuse(a, b, c), hvd::sum);
        auto send = comm.plan_broadcast(hvd::fuse(a, b, c), hvd::root{0});
        CHECK(allocations_of([&] { sum.run(); }) == 0);
        CHECK(allocations_of([&] { send.run(); }) == 0);
    });
}

TEST_CASE("repeated blocking calls of the same shape do not allocate") {
    hvd_test::on_ranks([](auto& comm) {
        const std::size_t size = std::size_t(comm.size());
        std::vector<float> x(size * 1000), all(size * size * 1000), part(1000);
        CHECK(allocations_of([&] { comm.allreduce(x, hvd::sum); }) == 0);
        CHECK(allocations_of([&] { comm.allreduce(hvd::fuse(x, part), hvd::average); }) == 0);
        CHECK(allocations_of([&] { comm.broadcast(x, hvd::root{0}); }) == 0);
        CHECK(allocations_of([&] { comm.allgather(x, hvd::into(all)); }) == 0);
        CHECK(allocations_of([&] { comm.reduce_scatter(x, hvd::sum, hvd::into(part)); }) == 0);
        CHECK(allocations_of([&] { comm.barrier(); }) == 0);
    });
}
