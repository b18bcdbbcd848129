// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The checks of the GPU suite run on the emulation too, so that they are right before there is a
// GPU.

#include "gpu_suite.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "forked.hpp"
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
    on_worlds(1, [](auto& world, const auto& report) { gpu_suite::healthy(world, report); });
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

TEST_CASE("abort") {
    on_worlds(1, [](auto& world, const auto& report) { gpu_suite::abort(world, report); });
}

TEST_CASE("a rank that is lost, and a communicator without it") {
    on_worlds(2, [](auto& world, const auto& report) {
        gpu_suite::lost_rank(world, [] {}, report);
        world.barrier();
    });
}

// As ./run test --gpu runs them.
TEST_CASE("a healthy communicator, and one that loses a killed process, on forked processes") {
    for (int ranks = 2; ranks <= 4; ++ranks) {
        const auto ends_of = [ranks](auto part) {
            return device_test::run_forked(ranks, [&](auto& world) {
                int wrong = 0;
                part(world, [&](bool right, const char* what) {
                    if (right) return;
                    std::fprintf(stderr, "wrong on rank %d: %s\n", world.rank(), what);
                    ++wrong;
                });
                return wrong == 0 ? 0 : 1;
            });
        };
        std::vector<int> ends(std::size_t(ranks), 0);
        CHECK(ends_of([](auto& world, const auto& report) { gpu_suite::healthy(world, report); }) ==
              ends);
        ends.back() = 128 + SIGKILL;
        CHECK(ends_of([](auto& world, const auto& report) {
                  gpu_suite::lost_rank(world, [] { kill(getpid(), SIGKILL); }, report);
              }) == ends);
    }
}

}  // namespace gpu_suite_tests
