// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The device path on the real libraries: 1 to 4 forked processes on one GPU. Each is a host of its
// own to NCCL. Threads on one GPU stage their tensors. Without a GPU the program prints hvd's error
// and exits with 77.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>

#include "forked.hpp"
#include "gpu_suite.hpp"
#include "reference.hpp"
#include "tensor.hpp"

namespace {

using device_test::in_a_process, device_test::numbers, device_test::status_of, device_test::tensor;

std::atomic<int> failures = 0;

void check(bool right, const char* what, const auto& ranks) {
    if (right) return;
    std::fprintf(stderr, "wrong on rank %d of %d: %s\n", ranks.rank(), ranks.size(), what);
    ++failures;
}

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

// Processes that share a GPU are hosts of their own to NCCL, which moves their data by sockets.
void share_a_gpu(int rank) {
    for (const auto& [name, value] : {std::pair{"NCCL_SOCKET_IFNAME", "lo"},
                                      {"NCCL_IB_DISABLE", "1"},
                                      {"NCCL_MNNVL_ENABLE", "0"},
                                      {"NCCL_NVLS_ENABLE", "0"},
                                      {"NCCL_MAX_CTAS", "1"},
                                      {"NCCL_DEBUG", "WARN"}})
        setenv(name, value, 0);
    setenv("NCCL_HOSTID", ("hvd-test-" + std::to_string(rank)).c_str(), 1);
}

// Runs f in forked processes. Returns true if each ends as it should: with 0, or killed by
// SIGKILL where the last one is.
template <class F>
bool right_on_processes(const char* what, int ranks, bool last_is_killed, F f) {
    const std::vector<int> ends =
        device_test::run_forked(ranks, [&](hvd::communicator<device_test::forked>& world) {
            share_a_gpu(world.rank());
            try {
                f(world, [&](bool right, const char* which) { check(right, which, world); });
            } catch (const std::exception& e) {
                std::fprintf(stderr, "rank %d of %d: %s\n", world.rank(), ranks, e.what());
                ++failures;
            }
            return failures == 0 ? 0 : 1;
        });
    bool right = true;
    for (int rank = 0; rank < ranks; ++rank)
        right = right && ends[std::size_t(rank)] ==
                             (last_is_killed && rank == ranks - 1 ? 128 + SIGKILL : 0);
    std::printf("%s, %d ranks on one GPU: %s\n", what, ranks, right ? "held" : "failed");
    std::fflush(stdout);
    return right;
}

bool right_on(int ranks) {
    bool right = right_on_processes("healthy", ranks, false, [](auto& world, const auto& report) {
        gpu_suite::healthy(world, report);
    });
    right &= right_on_processes("abort", ranks, false, [](auto& world, const auto& report) {
        gpu_suite::abort(world, report);
    });
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
    right &= right_on_processes("a killed rank", ranks, true, [](auto& world, const auto& report) {
        gpu_suite::lost_rank(world, [] { kill(getpid(), SIGKILL); }, report);
    });
    return right;
}

// Returns 0 if there is a GPU, 77 if there is none and hvd says so, and 1 if it says something
// else.
int look_for_a_gpu() {
    int result = 0;
    hvd::run_threads(1, [&](hvd::communicator<hvd::threads>& world) {
        try {
            hvd::pin_device(world);
            gpu_suite::gpu_communicator gpus(world);
            gpus.barrier();
        } catch (const hvd::cuda_error& e) {
            const bool said = std::string(e.what()).find("no usable GPU or driver was found") !=
                              std::string::npos;
            std::printf("%s%s\n", said ? "" : "without a GPU hvd says: ", e.what());
            result = said ? 77 : 1;
        }
    });
    return result;
}

}  // namespace

int main() {
    if (const int found = status_of(in_a_process(look_for_a_gpu)); found != 0) return found;
    bool right = status_of(in_a_process([] {
                     staged_by_threads();
                     return failures == 0 ? 0 : 1;
                 })) == 0;
    std::printf("staged, 3 ranks on one GPU: %s\n", right ? "held" : "failed");
    for (int ranks = 1; ranks <= 4; ++ranks) right &= right_on(ranks);
    return right ? 0 : 1;
}
