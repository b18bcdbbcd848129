// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Communicators of device tensors know the nodes, and make communicators of some of their ranks.

#include <cstdlib>
#include <set>

#include "support.hpp"

namespace topology_tests {

using namespace device_test;

namespace {

using hvd::nccl, hvd::threads;
using staged = hvd::staged<threads>;
using in_nodes = hvd::hierarchical<nccl, threads>;
using mixed = hvd::per_operation<nccl, staged, staged>;

template <class F>
void on_nodes_of(int node, int ranks, F f) {
    INFO("on ", ranks, " ranks in nodes of ", node);
    hvd::run_threads(ranks, f, {.node_size = node});
    CHECK(emulation::live_objects() == 0);
    CHECK(emulation::disagreements().empty());
    emulation::reset();
}

// 1 to 4 ranks, on nodes of 1, 2 and all ranks.
template <class Backend, class F>
void on_every_topology(F f) {
    for (int ranks = 1; ranks <= 4; ++ranks)
        for (const int node : std::set{1, 2, ranks})
            on_nodes_of(node, ranks, [&](hvd::communicator<threads>& world) {
                hvd::communicator<Backend> gpus(world, {.timeout = 20s});
                f(gpus, world);
            });
}

// The sum of the numbers that the members of `comm` give.
template <class Comm>
int sum_of(Comm& comm, int number) {
    const tensor<int> x{number};
    comm.allreduce(x.view(), hvd::sum);
    return x.values()[0];
}

template <class Comm, class Like>
void check_place(const Comm& comm, const Like& like) {
    CHECK(comm.rank() == like.rank());
    CHECK(comm.size() == like.size());
    CHECK(comm.local_rank() == like.local_rank());
    CHECK(comm.local_size() == like.local_size());
    CHECK(comm.cross_rank() == like.cross_rank());
    CHECK(comm.cross_size() == like.cross_size());
    CHECK(comm.is_homogeneous() == like.is_homogeneous());
}

}  // namespace

TEST_CASE_TEMPLATE("a communicator has the nodes of the one it is made from", Backend, nccl, staged,
                   in_nodes, mixed) {
    on_every_topology<Backend>([](auto& gpus, auto& world) {
        check_place(gpus, world);
        auto local = gpus.local(), cross = gpus.cross();
        auto host_local = world.local(), host_cross = world.cross();
        check_place(local, host_local);
        check_place(cross, host_cross);
        CHECK(sum_of(local, 1) == world.local_size());
        CHECK(sum_of(cross, 1) == world.cross_size());
        CHECK(sum_of(gpus, 1) == world.size());
    });
}

TEST_CASE_TEMPLATE("a subset has its ranks in ascending order, and the nodes of them", Backend,
                   nccl, staged, in_nodes, mixed) {
    on_every_topology<Backend>([](auto& gpus, auto& world) {
        const int last = gpus.size() - 1, r = gpus.rank();
        const std::vector<int> list = last == 0 ? std::vector{0} : std::vector{last, 0};
        auto some = gpus.subset(list);
        auto host = world.subset(list);
        CHECK(bool(some) == (r == 0 || r == last));
        check_place(some, host);
        if (some) {
            CHECK(sum_of(some, r) == last);
            const tensor<int> root{r};
            some.broadcast(root.view(), hvd::root{some.size() - 1});
            CHECK(root.values()[0] == last);
        }
        CHECK(!gpus.subset({}));
        auto reversed = gpus.split(0, -r);
        auto host_reversed = world.split(0, -r);
        check_place(reversed, host_reversed);
        auto inner = reversed.local();
        auto host_inner = host_reversed.local();
        check_place(inner, host_inner);
        CHECK(sum_of(inner, 1) == inner.size());
        CHECK(sum_of(gpus, 1) == gpus.size());
    });
}

TEST_CASE_TEMPLATE("a subset that is none is refused on every rank, and the communicator works on",
                   Backend, nccl, staged, in_nodes, mixed) {
    on_every_topology<Backend>([](auto& gpus, auto&) {
        const int n = gpus.size();
        CHECK_THROWS_WITH_AS((void)gpus.subset({0, n}), doctest::Contains("is not a rank"),
                             hvd::usage_error);
        CHECK_THROWS_AS((void)gpus.subset({-1}), hvd::usage_error);
        CHECK_THROWS_WITH_AS((void)gpus.subset({0, 0}), doctest::Contains("twice"),
                             hvd::usage_error);
        if (n > 1)
            CHECK_THROWS_AS((void)gpus.subset({gpus.rank() == 0 ? 0 : 1}), hvd::mismatch_error);
        CHECK(sum_of(gpus, 1) == n);
    });
}

TEST_CASE("a combination of host and device backends is split in all its parts") {
    for (const int node : {1, 2, 4})
        on_nodes_of(node, 4, [](hvd::communicator<threads>& world) {
            hvd::communicator<hvd::per_operation<nccl, threads, staged>> both(world,
                                                                              {.timeout = 20s});
            check_place(both, world);
            auto local = both.local(), cross = both.cross();
            auto host_local = world.local();
            check_place(local, host_local);
            CHECK(sum_of(cross, 1) == world.cross_size());
            const auto ranks = local.allgather(world.rank()).values;
            CHECK(ranks == host_local.allgather(world.rank()).values);
            const tensor<int> first{world.rank()};
            local.broadcast(first.view());
            CHECK(first.values()[0] == ranks.front());
            CHECK(bool(both.subset({1, 3})) == (world.rank() % 2 == 1));
        });
}

TEST_CASE("empty communicators have no nodes, and make no others") {
    hvd::communicator<nccl> none;
    CHECK(none.local_size() == 0);
    CHECK(none.cross_size() == 0);
    CHECK_THROWS_AS((void)none.local(), hvd::usage_error);
    CHECK_THROWS_AS((void)none.cross(), hvd::usage_error);
    CHECK_THROWS_AS((void)none.subset({0}), hvd::usage_error);
}

TEST_CASE("ranks of a raw handle find by NCCL which of them share a host") {
    on_gpus([](auto& gpus) {
        if (gpus.size() == 1) return;  // it has no handle
        hvd::communicator<nccl> raw(gpus.native_handle(), hvd::borrow);
        CHECK(raw.local_size() == raw.size());
        CHECK(raw.local_rank() == raw.rank());
        CHECK(raw.cross_size() == 1);
        CHECK(raw.is_homogeneous());
    });
}

TEST_CASE("ranks of a raw handle take declared nodes, and hand them on") {
    const auto check = [](auto& gpus, const hvd::communicator_options& options) {
        if (gpus.size() == 1) return;
        hvd::communicator<nccl> raw(gpus.native_handle(), hvd::borrow, options);
        const int n = raw.size(), r = raw.rank();
        CHECK(raw.local_rank() == r % 2);
        CHECK(raw.local_size() == (r == n - 1 && n % 2 == 1 ? 1 : 2));
        CHECK(raw.cross_rank() == r / 2);
        CHECK(raw.cross_size() == (r % 2 == 0 ? (n + 1) / 2 : n / 2));
        CHECK(raw.is_homogeneous() == (n % 2 == 0));
        auto local = raw.local(), all = raw.split(0, -r);
        CHECK(local.size() == raw.local_size());
        CHECK(local.cross_size() == 1);
        CHECK(all.local_size() == raw.local_size());
        CHECK(sum_of(all, 1) == n);
    };
    on_gpus([&](auto& gpus) { check(gpus, {.timeout = 10s, .node_size = 2}); });
    setenv("HVD_NODE_SIZE", "2", 1);
    on_gpus([&](auto& gpus) { check(gpus, {.timeout = 10s}); });
    unsetenv("HVD_NODE_SIZE");
}

TEST_CASE("ranks of a raw handle that declare other nodes, or none, are told") {
    on_gpus(
        [](auto& gpus) {
            const auto take = [&](int mine) {
                hvd::communicator<nccl> raw(gpus.native_handle(), hvd::borrow,
                                            {.timeout = 10s, .node_size = mine});
            };
            CHECK_THROWS_AS(take(gpus.rank() == 0 ? 1 : 2), hvd::mismatch_error);
            if (gpus.rank() == 0) CHECK_THROWS_AS(take(-1), hvd::usage_error);
            else CHECK_THROWS_AS(take(2), hvd::peer_error);
            CHECK(sum_of(gpus, 1) == gpus.size());
        },
        2);
}

TEST_CASE("those who are left after others died keep their nodes") {
    for (int ranks = 3; ranks <= 4; ++ranks)
        on_nodes_of(2, ranks, [](hvd::communicator<threads>& world) {
            hvd::communicator<nccl> gpus(world, {.timeout = 10s});
            const int last = gpus.size() - 1;
            CHECK(sum_of(gpus, 1) == world.size());
            world.barrier();  // nobody dies while others are still in the call
            if (gpus.rank() == last) {
                gpus.abort();
                return;
            }
            const tensor<int> x{1};
            CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum, {.timeout = 1s * slowness}),
                            hvd::peer_error);
            auto rest = gpus.shrink(std::vector<int>{last});
            CHECK(rest.local_rank() == world.local_rank());
            CHECK(rest.local_size() == (rest.rank() < 2 ? 2 : 1));
            CHECK(rest.cross_size() == (last == 3 && rest.rank() % 2 == 0 ? 2 : 1));
            CHECK(rest.is_homogeneous() == (last == 2));
        });
}

TEST_CASE_TEMPLATE("slices of one GPU are GPUs of their own", Backend, nccl, staged) {
    for (const int slices : {2, 4})
        for (int ranks = 1; ranks <= 4; ++ranks) {
            emulation::reset();
            emulation::answer("slices", slices);
            hvd::run_threads(ranks, [slices](hvd::communicator<threads>& world) {
                const int own = hvd::pin_device(world);
                CHECK(own == world.rank());
                cudaDeviceProp slice{};
                cudaGetDeviceProperties(&slice, own);
                CHECK(slice.pciBusID == own / slices);
                hvd::communicator<Backend> gpus(world, {.timeout = 20s});
                CHECK(gpus.device() == own);
                CHECK(sum_of(gpus, 1) == world.size());
            });
            CHECK(emulation::live_objects() == 0);
        }
    // A slice that two ranks would share is named with its own id.
    emulation::answer("slices", 4);
    hvd::run_threads(5, [](hvd::communicator<threads>& world) {
        const bool shares = world.rank() % 4 == 0;
        try {
            hvd::pin_device(world);
            FAIL_CHECK("five ranks have four slices");
        } catch (const hvd::usage_error& e) {
            CHECK(shares);
            const std::string told = e.what();
            CHECK(told.find("GPU-a0000000-0000-0000-0000-000000000000") != std::string::npos);
        } catch (const hvd::peer_error&) {
            CHECK(!shares);
        }
    });
    emulation::reset();
}

}  // namespace topology_tests
