// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Every policy against a serial reference, on forked processes.

#include "gpu_policies.hpp"

#include <hvd/tcp.hpp>

#include "gpu_forked.hpp"
#include "tcp_ranks.hpp"

namespace on_a_gpu {

namespace {

using host = device_test::forked;

// Processes that meet by hvd::tcp.
bool staged_by_tcp(int ranks) {
    gpus_of_this_machine();
    hvd_test::tcp_ranks job(ranks);
    job.start([ranks](int rank) {
        take_a_gpu(rank, ranks);
        try {
            auto world = hvd::communicator<hvd::tcp>::world();
            gpu_policies::check_staged<hvd::tcp>(
                world, [&](bool right, const char* which) { check(right, which, world); });
        } catch (const std::exception& e) {
            std::fprintf(stderr, "rank %d of %d: %s\n", rank, ranks, e.what());
            ++failures;
        }
        return failures == 0 ? 0 : 1;
    });
    bool right = true;
    for (int r = 0; r < ranks; ++r) right &= job.wait_for(r) == 0;
    return right;
}

}  // namespace

bool policies() {
    bool right = true;
    for (int ranks = 1; ranks <= 4; ++ranks) {
        const auto play = [&](const char* name, auto part) {
            right &= right_on_processes(name, ranks, false, part);
        };
        play("nccl", [](auto& w, const auto& r) { gpu_policies::check_nccl<host>(w, r); });
        play("staged over processes",
             [](auto& w, const auto& r) { gpu_policies::check_staged<host>(w, r); });
        play("per_operation",
             [](auto& w, const auto& r) { gpu_policies::check_per_operation<host>(w, r); });
        play("hierarchical",
             [](auto& w, const auto& r) { gpu_policies::check_hierarchical<host>(w, r); });
        right &= say("staged over TCP", ranks, staged_by_tcp(ranks));
    }
    return right;
}

}  // namespace on_a_gpu
