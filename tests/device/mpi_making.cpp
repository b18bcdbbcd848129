// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Communicators of device tensors over a real MPI are made on all ranks or on none. The emulated
// NCCL of a process waits for the ranks of others for ever, as the real one does for a rank that
// failed.

#include <string>

#include <emulation.hpp>

#include <hvd/mpi.hpp>
#include <hvd/nccl.hpp>
#include "hvd_test.hpp"

namespace mpi_making_tests {

namespace {

using world_type = hvd::communicator<hvd::mpi>;

template <class Backend>
void check_told(world_type& world, int failing, const char* function, int code) {
    INFO(std::string(function), " fails on rank ", failing);
    emulation::reset();
    if (world.rank() == failing) emulation::fail(function, 1, code);
    std::string why = "it was made";
    try {
        hvd::communicator<Backend> gpus(world, {.timeout = std::chrono::minutes(2)});
    } catch (const hvd::library_error& e) {
        CHECK(world.rank() == failing);
        why = e.what();
    } catch (const hvd::peer_error& e) {
        CHECK(world.rank() != failing);
        CHECK(e.peers() == std::vector{failing});
        why = e.what();
    }
    CHECK_MESSAGE(why.find(function) != std::string::npos, why);
    CHECK(emulation::live_objects() == 0);
    int all = 1;
    world.allreduce(all, hvd::sum);
    CHECK(all == world.size());
    emulation::reset();
}

}  // namespace

TEST_CASE("a process whose initialisation fails tells the others, which do not wait for it") {
    auto world = world_type::world();
    for (int failing = 0; failing < world.size(); ++failing) {
        check_told<hvd::nccl>(world, failing, "cudaStreamCreateWithFlags",
                              cudaErrorMemoryAllocation);
        if (world.size() == 1) continue;  // a rank that is alone does not need NCCL
        check_told<hvd::nccl>(world, failing, "ncclCommInitRankConfig", ncclSystemError);
        check_told<hvd::nccl>(world, failing, "ncclCommGetAsyncError", ncclUnhandledCudaError);
    }
}

}  // namespace mpi_making_tests
