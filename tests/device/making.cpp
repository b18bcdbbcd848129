// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Communicators of device tensors are made on all ranks or on none.

#include <atomic>
#include <set>
#include <string>

#include "support.hpp"
#include "text_of.hpp"

namespace making_tests {

using namespace device_test;

namespace {

using hvd::nccl, hvd::threads;
using hvd_test::text_of;
using world_type = hvd::communicator<threads>;

struct refusal {
    const char* function;
    int call, code;
    std::string said = function;
};

// One call fails while `make(world)` makes a communicator. The rank that made the call gets the
// exception `Own`, and the others are told its text. Nobody waits for the timeout, and the
// bootstrap communicator works on.
template <class Own, class F>
void check_told(int ranks, int node, const refusal& failing, F make) {
    INFO(std::string(failing.function), " fails at call ", failing.call, " on ", ranks,
         " ranks in nodes of ", node);
    emulation::reset();
    emulation::fail(failing.function, failing.call, failing.code);
    std::atomic<int> failed = 0, told = 0;
    hvd::run_threads(
        ranks,
        [&](world_type& world) {
            cudaSetDevice(world.rank());
            try {
                make(world);
                FAIL_CHECK("it was made on rank ", world.rank());
            } catch (const Own& e) {
                CHECK(e.rank() >= 0);
                CHECK_MESSAGE(std::string(e.what()).find(failing.said) != std::string::npos,
                              e.what());
                ++failed;
            } catch (const hvd::peer_error& e) {
                CHECK_MESSAGE(std::string(e.what()).find(failing.said) != std::string::npos,
                              e.what());
                CHECK(!e.peers().empty());
                ++told;
            }
            int all = 1;
            world.allreduce(all, hvd::sum);
            CHECK(all == world.size());
        },
        {.node_size = node});
    CHECK(failed == 1);
    CHECK(told == ranks - 1);
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

}  // namespace

TEST_CASE("a rank whose initialisation fails tells the others, which do not wait for it") {
    const auto make = [](world_type& world) {
        hvd::communicator<nccl> gpus(world, {.timeout = 60s});
    };
    using hvd::cuda_error, hvd::nccl_error;
    for (int n = 1; n <= 4; ++n)
        for (int k = 1; k <= n; ++k) {
            check_told<cuda_error>(n, n, {"cudaGetDevice", 1, cudaErrorInvalidDevice}, make);
            check_told<cuda_error>(
                n, n, {"cudaStreamCreateWithFlags", k, cudaErrorMemoryAllocation}, make);
            check_told<nccl_error>(n, n, {"ncclGetVersion", k, 1}, make);
            if (n == 1) continue;  // a rank that is alone does not need NCCL
            check_told<nccl_error>(n, n, {"ncclGetUniqueId", 1, 2}, make);
            check_told<nccl_error>(n, n, {"ncclCommInitRankConfig", k, 2}, make);
            check_told<nccl_error>(n, n, {"ncclCommGetAsyncError", k, 1}, make);
            check_told<nccl_error>(n, n, {"ncclCommInitRankFunc", k, 2, "ncclCommInitRankConfig"},
                                   make);
        }
}

TEST_CASE("ranks that have lost another one are told its reason, which it finds out later") {
    using hvd::detail::joining;
    const auto lose = [](int ranks, int knowing) {
        hvd::run_threads(ranks, [=](world_type& world) {
            int rounds = 0;
            const std::string why = text_of<hvd::error>([&] {
                hvd::detail::work_together(hvd::detail::access::session_of(world), "work",
                                           {.timeout = 60s}, hvd::detail::limit_of(60s), [&](auto) {
                                               ++rounds;
                                               if (world.rank() != knowing) return joining::lost;
                                               if (rounds == 2)
                                                   throw hvd::usage_error(knowing,
                                                                          "its cable is cut");
                                               return joining::under_way;
                                           });
            });
            const char* const said = knowing < 0 ? "NCCL lost a rank" : "its cable is cut";
            CHECK_MESSAGE(why.find(said) != std::string::npos, why);
            CHECK(rounds == 2);
            world.barrier();
        });
    };
    for (int n = 1; n <= 4; ++n)
        for (int knowing = -1; knowing < n; ++knowing) lose(n, knowing);
}

TEST_CASE("a split that fails on one rank is told to the others, which do not wait for it") {
    for (int n = 2; n <= 4; ++n)
        for (int k = 1; k <= n; ++k)
            check_told<hvd::nccl_error>(n, n, {"ncclCommSplit", k, 3}, [](world_type& world) {
                hvd::communicator<nccl> gpus(world, {.timeout = 600s});
                auto half = gpus.split(world.rank() % 2);
            });
}

TEST_CASE("a window that fails on one rank is told to the others, which do not wait for it") {
    for (int n = 2; n <= 4; ++n)
        for (int k = 1; k <= n; ++k)
            check_told<hvd::nccl_error>(
                n, n, {"ncclCommWindowRegister", k, 3}, [](world_type& world) {
                    const tensor<float> a{1}, b{2};
                    hvd::communicator<nccl> gpus(world, {.timeout = 600s});
                    auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum);
                });
}

TEST_CASE("where a half of a hierarchical communicator fails on a node, every node is told") {
    const auto make = [](world_type& world) {
        hvd::communicator<hvd::hierarchical<nccl, threads>> gpus(world, {.timeout = 60s});
    };
    for (int n = 1; n <= 4; ++n)
        for (const int node : std::set{1, 2, n}) {
            for (int k = 1; node > 1 && k <= n / node * node; ++k)
                check_told<hvd::nccl_error>(n, node, {"ncclCommInitRankConfig", k, 2}, make);
            // The streams of NCCL's half, of the host's half, and of the whole.
            for (int k = 1; k <= 3 * n; ++k)
                check_told<hvd::cuda_error>(
                    n, node, {"cudaStreamCreateWithFlags", k, cudaErrorMemoryAllocation}, make);
        }
}

TEST_CASE("where one of several backends fails on a rank, none of them is made") {
    const auto make = [](world_type& world) {
        hvd::communicator<
            hvd::per_operation<nccl, hvd::staged<threads>, hvd::hierarchical<nccl, threads>>>
            gpus(world, {.timeout = 60s});
    };
    for (int n = 2; n <= 4; ++n) {
        check_told<hvd::nccl_error>(n, n, {"ncclCommInitRankConfig", n, 2}, make);
        for (int k = 1; k <= 5 * n; ++k)
            check_told<hvd::cuda_error>(
                n, n, {"cudaStreamCreateWithFlags", k, cudaErrorMemoryAllocation}, make);
    }
}

}  // namespace making_tests
