// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Every policy against a serial reference, on the processes of MPI. Without a GPU it exits with 77;
// `on_a_gpu.mpi look` only looks for one.

#include <cstdlib>
#include <string_view>

#include <hvd/mpi.hpp>

#include "gpu_forked.hpp"
#include "gpu_policies.hpp"

namespace {

using world_type = hvd::communicator<hvd::mpi>;
using on_a_gpu::failures;

// An MPI that takes no device memory says so. Reductions are staged there.
void check_cuda_aware(world_type& world, const gpu_policies::reporter& report, bool& is_refused) {
    try {
        gpu_policies::check_policy<hvd::cuda_aware<hvd::mpi>>(world, report, true, true);
    } catch (const hvd::usage_error&) {
        is_refused = true;
    }
}

void say(world_type& world, const char* what, const char* otherwise = nullptr) {
    int wrong = failures.exchange(0) == 0 ? 0 : 1;
    world.allreduce(wrong, hvd::max);
    if (world.rank() != 0) return;
    if (otherwise != nullptr) std::printf("%s: not shown: %s\n", what, otherwise);
    else on_a_gpu::say(what, world.size(), wrong == 0);
}

int run(world_type& world) {
    const auto report = [&](bool right, const char* which) {
        on_a_gpu::check(right, which, world);
    };
    int wrong = 0;
    const auto end = [&](const char* what, const char* otherwise = nullptr) {
        wrong += failures;
        say(world, what, otherwise);
    };
    gpu_policies::check_nccl<hvd::mpi>(world, report);
    end("nccl over MPI");
    gpu_policies::check_staged<hvd::mpi>(world, report);
    end("staged over MPI");
    gpu_policies::check_per_operation<hvd::mpi>(world, report);
    end("per_operation over MPI");
    gpu_policies::check_hierarchical<hvd::mpi>(world, report);
    end("hierarchical over MPI");
    bool is_refused = false;
    check_cuda_aware(world, report, is_refused);
    end("cuda_aware over MPI", is_refused ? "this MPI takes no device memory" : nullptr);
    return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    // MPI sets the rank before it is initialised; a fork comes before as well.
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
    const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
    if (on_a_gpu::gpus_of_this_machine() == 0) {
        std::printf("no usable GPU or driver was found\n");
        return 77;
    }
    if (argc == 2 && std::string_view(argv[1]) == "look") return 0;
    on_a_gpu::take_a_gpu(rank == nullptr ? 0 : std::atoi(rank),
                         size == nullptr ? 1 : std::atoi(size));
    const hvd::mpi_environment environment(argc, argv);
    try {
        auto world = world_type::world({.timeout = std::chrono::seconds(60)});
        return run(world);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
