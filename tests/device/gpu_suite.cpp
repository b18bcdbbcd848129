// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The checks of the GPU suite run on threads over the emulation, too, so that they are right before
// there is a GPU. gpu.cpp runs them in processes.

#include "forked.hpp"
#include "gpu_first_launches.hpp"
#include "support.hpp"

namespace gpu_suite_tests {

namespace {

// Runs f(world, report) on threads as ranks.
template <class F>
void on_worlds(int least, F f) {
    for (int ranks = least; ranks <= 4; ++ranks) {
        hvd::run_threads(ranks, [&](hvd::communicator<hvd::threads>& world) {
            f(world, [&](bool right, const char* what) {
                CHECK_MESSAGE(right, std::string(what), " on rank ", world.rank(), " of ", ranks);
            });
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

}  // namespace

TEST_CASE("forked processes are ranks of a host communicator") {
    for (int ranks = 1; ranks <= 4; ++ranks) {
        const std::vector<int> ends = device_test::run_forked(ranks, [](auto& world) {
            const int n = world.size(), r = world.rank();
            std::vector<float> x(100'000, float(r + 1));
            world.allreduce(x, hvd::sum);
            auto part = world.split(r % 2, -r);
            float least = float(r);
            part.allreduce(least, hvd::min);
            return x.back() == float(n * (n + 1) / 2) && least == float(r % 2) ? 0 : 1;
        });
        CHECK(ends == std::vector<int>(std::size_t(ranks), 0));
    }
}

TEST_CASE("a healthy communicator") {
    on_worlds(1, [](auto& world, const auto& report) {
        gpu_suite::healthy(world, report, [](std::size_t) {});
    });
}

TEST_CASE("a graph after an error") {
    on_worlds(
        1, [](auto& world, const auto& report) { gpu_suite::graph_after_an_error(world, report); });
}

TEST_CASE("a rank that leaves out a call") {
    on_worlds(2, [](auto& world, const auto& report) { gpu_suite::timeout(world, report); });
}

TEST_CASE("a rank that leaves out a call that a stream waits for, or beside which one frees") {
    on_worlds(2, [](auto& world, const auto& report) {
        gpu_suite::timeout_of_a_stream(world, report);
        world.barrier();
        for (const bool by_stream : {false, true})
            gpu_suite::timeout_beside_a_free(world, by_stream, report);
    });
}

TEST_CASE("a rank that leaves out a call, beside which a plan and a communicator end") {
    on_worlds(
        2, [](auto& world, const auto& report) { gpu_suite::timeout_beside_ends(world, report); });
}

TEST_CASE("kernels that are launched first beside a call that waits") {
    emulation::unload_kernels();
    on_worlds(2, [](auto& world, const auto& report) {
        gpu_suite::first_launches(world, report);
        world.barrier();
        emulation::unload_kernels();
    });
}

TEST_CASE("memory that ends on one rank while the calls of the others go on") {
    on_worlds(2, [](auto& world, const auto& report) {
        gpu_suite::memory_after_an_error(world, report);
    });
}

TEST_CASE("ranks that go on without one that lives") {
    on_worlds(2, [](auto& world, const auto& report) { gpu_suite::shrunk(world, report); });
}

TEST_CASE("abort") {
    on_worlds(1, [](auto& world, const auto& report) { gpu_suite::abort(world, report); });
}

TEST_CASE("a rank that is lost, and a communicator without it") {
    on_worlds(2, [](auto& world, const auto& report) {
        gpu_suite::lost_rank(world, [] {}, report);
        world.barrier();
    });
}

}  // namespace gpu_suite_tests
