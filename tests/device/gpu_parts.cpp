// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// communicator<nccl> on 1 to 4 forked processes, and staged tensors of threads.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string_view>
#include <utility>

#include <hvd/threads.hpp>

#include "gpu_first_launches.hpp"
#include "gpu_forked.hpp"
#include "gpu_suite.hpp"
#include "reference.hpp"
#include "tensor.hpp"

namespace on_a_gpu {

namespace {

using device_test::numbers, device_test::tensor;

void check_staged(hvd::communicator<hvd::staged<hvd::threads>>& gpus) {
    const auto report = [&](bool right, const char* what) { check(right, what, gpus); };
    for (const std::size_t count :
         {std::size_t(0), std::size_t(1), std::size_t(1001), std::size_t(1'500'003)}) {
        reference::check_reduction<float>(gpus, count, hvd::average, report, 0.3, 1.7);
        reference::check_movements<std::int32_t>(gpus, count, true, report);
        reference::check_movements<std::int16_t>(gpus, count, false, report);
        reference::check_uneven_alltoall<double>(gpus, count, report);
    }
    reference::check_operations<float>(gpus, 10'007, report);
    reference::check_operations<hvd::bfloat16>(gpus, 10'007, report);
    reference::check_operations<std::uint64_t>(gpus, 10'007, report);
    const int n = gpus.size(), r = gpus.rank();
    const tensor<float> a(numbers<float>(1003, r)), large(numbers<float>(1'000'003, r));
    auto plan = gpus.plan_allreduce(hvd::fuse(hvd::device_view(a.data() + 1, 1001), large.view()),
                                    hvd::sum);
    for (int run = 0; run < 3; ++run) plan.run();
    check(a.values()[1] == float(n * n * n * (n + 1) / 2) &&
              large.values()[7] == 7 * float(n * n * n * (n + 1) / 2),
          "a staged plan", gpus);
    gpus.barrier();
}

// Runs several threads of one process that share one GPU.
void staged_by_threads() {
    for (int ranks = 1; ranks <= 3; ++ranks)
        hvd::run_threads(ranks, [](hvd::communicator<hvd::threads>& world) {
            hvd::pin_device(world, {.share = true});
            hvd::communicator<hvd::staged<hvd::threads>> gpus(
                world, {.timeout = std::chrono::seconds(60)});
            check_staged(gpus);
        });
}

// The promises of a healthy communicator are checked in the same processes. One holds if it does so
// on every rank, and the first one if the processes end well, too.
bool right_healthy(int ranks) {
    const auto& promises = gpu_suite::promises_of_healthy<hvd::communicator<device_test::forked>>;
    held_promises held(std::size(promises));
    const auto ends = ends_of_processes(ranks, [&](auto& world, const auto& report) {
        int before = 0;
        gpu_suite::healthy(world, report, [&](std::size_t i) {
            if (failures == std::exchange(before, failures)) ++held[i];
        });
    });
    bool all = true;
    for (std::size_t i = 0; i < std::size(promises); ++i) all &= held[i] == ranks;
    const bool end_well = !all || ends == std::vector<int>(std::size_t(ranks), 0);
    for (std::size_t i = 0; i < std::size(promises); ++i)
        if (gpus_of_this_machine() > 1 || std::string_view(promises[i].name) != "contexts")
            say(promises[i].name, ranks, held[i] == ranks && (i > 0 || end_well));
    return all && end_well;
}

bool right_on(int ranks) {
    bool right = right_healthy(ranks);
    right &= right_on_processes("abort", ranks, false, [](auto& world, const auto& report) {
        gpu_suite::abort(world, report);
    });
    right &= right_on_processes(
        "graph after an error", ranks, false,
        [](auto& world, const auto& report) { gpu_suite::graph_after_an_error(world, report); });
    if (ranks == 1) return right;
    right &= right_on_processes("timeout", ranks, false, [](auto& world, const auto& report) {
        gpu_suite::timeout(world, report);
    });
    const auto beside = [](bool by_stream) {
        return [by_stream](auto& world, const auto& report) {
            gpu_suite::timeout_beside_a_free(world, by_stream, report);
        };
    };
    right &= right_on_processes(
        "timeout of a stream", ranks, false,
        [](auto& world, const auto& report) { gpu_suite::timeout_of_a_stream(world, report); });
    right &=
        right_on_processes("timeout beside a free, the host waits", ranks, false, beside(false));
    right &=
        right_on_processes("timeout beside a free, a stream waits", ranks, false, beside(true));
    right &= right_on_processes(
        "timeout beside ends", ranks, false,
        [](auto& world, const auto& report) { gpu_suite::timeout_beside_ends(world, report); });
    right &= right_on_processes(
        "first launches", ranks, false,
        [](auto& world, const auto& report) { gpu_suite::first_launches(world, report); });
    right &= right_on_processes(
        "memory after an error", ranks, false,
        [](auto& world, const auto& report) { gpu_suite::memory_after_an_error(world, report); });
    right &= right_on_processes("shrink", ranks, false, [](auto& world, const auto& report) {
        gpu_suite::shrunk(world, report);
    });
    right &= right_on_processes("a killed rank", ranks, true, [](auto& world, const auto& report) {
        gpu_suite::lost_rank(world, [] { kill(getpid(), SIGKILL); }, report);
    });
    return right;
}

}  // namespace

bool suite() {
    if (gpus_of_this_machine() < 2) std::printf("contexts: not shown: it needs two GPUs\n");
    bool right = right_in_a_process("staged", 3, staged_by_threads);
    for (int ranks = 1; ranks <= 4; ++ranks) right &= right_on(ranks);
    return right;
}

}  // namespace on_a_gpu
