// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Device tensors over a real MPI. The GPU is emulated, one in each process.

#include <cstdlib>

#include <emulation.hpp>

#include <hvd/cuda.hpp>
#include "hvd_test.hpp"
#include "on_processes.hpp"
#include "reference.hpp"

namespace mpi_policies_tests {

using namespace device_test;

TEST_CASE("staged tensors") {
    hvd_test::on_ranks([](auto& world) {
        hvd::communicator<hvd::staged<hvd::mpi>> gpus(world);
        check_everything(gpus);
        check_uneven(gpus);
    });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("processes that see one GPU each stage their tensors, with the bits of the host") {
    hvd_test::on_ranks([](auto& world) {
        emulation::see_only(world.rank());
        CHECK(hvd::pin_device(world) == 0);
        hvd::communicator<hvd::staged<hvd::mpi>> gpus(world);
        const auto report = [](bool right, const char* what) { CHECK_MESSAGE(right, what); };
        reference::check_reduction<float>(gpus, 1025, hvd::average, report);
        reference::check_reduction<std::int16_t>(gpus, 1025, hvd::max, report);
        reference::check_movements<std::int16_t>(gpus, 1025, true, report);
        reference::check_uneven_alltoall<double>(gpus, 1025, report);
    });
    CHECK(emulation::live_objects() == 0);
    emulation::see_only(-1);
    emulation::reset();
}

// here the memory is visible to both sides
TEST_CASE("an MPI that takes device memory is given it") {
    setenv("HVD_MPI_CUDA_AWARE", "1", 1);
    hvd_test::on_ranks([](auto& world) {
        hvd::communicator<hvd::cuda_aware<hvd::mpi>> gpus(world);
        check_everything(gpus);
        check_uneven(gpus);
    });
    unsetenv("HVD_MPI_CUDA_AWARE");
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE_TEMPLATE("device tensors over MPI know declared nodes", Backend, hvd::staged<hvd::mpi>,
                   hvd::cuda_aware<hvd::mpi>) {
    setenv("HVD_MPI_CUDA_AWARE", "1", 1);
    hvd_test::on_ranks([](auto& all) {
        auto world = hvd::communicator<hvd::mpi>::world({.node_size = 2});
        REQUIRE(world.size() == all.size());
        hvd::communicator<Backend> gpus(world);
        CHECK(gpus.local_rank() == world.rank() % 2);
        CHECK(gpus.cross_size() == world.cross_size());
        CHECK(gpus.is_homogeneous() == world.is_homogeneous());
        auto local = gpus.local(), last = gpus.subset({gpus.size() - 1});
        CHECK(local.size() == world.local_size());
        CHECK(bool(last) == (gpus.rank() == gpus.size() - 1));
        const tensor<int> x({1}, true);
        local.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[0] == world.local_size());
    });
    unsetenv("HVD_MPI_CUDA_AWARE");
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("an MPI that does not is refused") {
    setenv("HVD_MPI_CUDA_AWARE", "0", 1);
    hvd_test::on_ranks([](auto& world) {
        try {
            hvd::communicator<hvd::cuda_aware<hvd::mpi>> gpus(world);
            FAIL("it was not");
        } catch (const hvd::usage_error& e) {
            CHECK(std::string(e.what()).find(
                      "does not take device memory; use hvd::staged<hvd::mpi>") !=
                  std::string::npos);
        }
    });
    unsetenv("HVD_MPI_CUDA_AWARE");
}

}  // namespace mpi_policies_tests
