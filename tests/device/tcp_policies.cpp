// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Device tensors of processes without MPI. The GPU is emulated, one in each process.

#include <chrono>
#include <string>

#include <emulation.hpp>

#include <hvd/tcp.hpp>

#include <hvd/cuda.hpp>
#include "on_processes.hpp"
#include "ranks.hpp"
#include "reference.hpp"
#include "text_of.hpp"

namespace tcp_policies_tests {

using namespace device_test;

namespace {

using world_type = hvd::communicator<hvd::tcp>;
using gpu_communicator = hvd::communicator<hvd::staged<hvd::tcp>>;

// Runs f(gpus) on this launch's ranks.
template <class F>
void on_gpus(F f) {
    {
        const hvd_test::failing_rank_does_not_hang guard;
        auto world = world_type::world();
        REQUIRE(world.size() == hvd_test::launched_ranks());
        hvd::pin_device(world, {.share = true});
        gpu_communicator gpus(world, {.timeout = std::chrono::seconds(60)});
        f(gpus);
    }
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

}  // namespace

TEST_CASE("staged tensors") {
    on_gpus([](auto& gpus) {
        check_everything(gpus);
        check_uneven(gpus);
    });
}

TEST_CASE("staged tensors have the bits of the host") {
    on_gpus([](auto& gpus) {
        const auto report = [](bool right, const char* what) { CHECK_MESSAGE(right, what); };
        for (const std::size_t count : {std::size_t(0), std::size_t(1), std::size_t(1025)}) {
            reference::check_reduction<float>(gpus, count, hvd::average, report, 0.3, 1.7);
            reference::check_reduction<hvd::bfloat16>(gpus, count, hvd::sum, report);
            reference::check_reduction<std::int16_t>(gpus, count, hvd::max, report);
            reference::check_movements<std::int32_t>(gpus, count, true, report);
            reference::check_movements<std::int16_t>(gpus, count, false, report);
            reference::check_uneven_alltoall<double>(gpus, count, report);
        }
    });
}

TEST_CASE("a communicator knows the nodes of its world, and is split") {
    const hvd_test::failing_rank_does_not_hang guard;
    auto world = world_type::world();
    gpu_communicator gpus(world);
    CHECK(gpus.local_rank() == world.local_rank());
    CHECK(gpus.local_size() == world.local_size());
    CHECK(gpus.cross_size() == world.cross_size());
    auto local = gpus.local(), last = gpus.subset({gpus.size() - 1});
    CHECK(bool(last) == (gpus.rank() == gpus.size() - 1));
    const tensor<int> x{1};
    local.allreduce(x.view(), hvd::sum);
    CHECK(x.values()[0] == world.local_size());
}

TEST_CASE("ranks that disagree are told, and the communicator works on") {
    on_gpus([](auto& gpus) {
        if (gpus.size() == 1) return;
        const tensor<float> two{1, 2}, three{1, 2, 3};
        const auto& mine = gpus.rank() == 1 ? three : two;
        const std::string said =
            hvd_test::text_of<hvd::mismatch_error>([&] { gpus.broadcast(mine.view()); });
        CHECK_MESSAGE(said.find("rank 0: 2, rank 1: 3") != std::string::npos, said);
        gpus.allreduce(two.view(), hvd::sum);
        CHECK(two.values()[1] == float(2 * gpus.size()));
    });
}

TEST_CASE("a rank that ends its communicator ends those of the others") {
    on_gpus([](auto& gpus) {
        const tensor<float> x{1};
        gpus.allreduce(x.view(), hvd::sum);
        if (gpus.rank() == 0) gpus.abort();
        CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum), hvd::peer_error);
    });
}

}  // namespace tcp_policies_tests
