// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Device tensors over a real MPI. The GPU is emulated, one in each process.

#include <cstdlib>

#include <emulation.hpp>

#include <hvd/cuda.hpp>
#include "hvd_test.hpp"
#include "tensor.hpp"

namespace mpi_policies_tests {

using namespace device_test;

namespace {

template <class Gpus>
void check_everything(Gpus& gpus) {
    const int n = gpus.size(), r = gpus.rank(), last = n - 1;
    const std::size_t ranks = std::size_t(n), count = (std::size_t(5) << 20) / 4 + 3;
    const tensor<float> x(std::vector<float>(count, float(r + 1)), true),
        y(std::vector<float>(count, float(r)), true);
    gpus.allreduce(x.view(), hvd::average);
    CHECK(x.values() == std::vector<float>(count, float(n + 1) / 2));
    gpus.broadcast(y.view(), hvd::root{last});
    CHECK(y.values() == std::vector<float>(count, float(last)));

    const tensor<short> mine({short(r), short(10 * r)}, true),
        all(std::vector<short>(2 * ranks, -1), true), back({-1, -1}, true);
    gpus.allgather(mine.view(), hvd::into(all.view()));
    for (int p = 0; p < n; ++p) CHECK(all.values()[std::size_t(2 * p + 1)] == 10 * p);
    gpus.scatter(all.view(), hvd::into(back.view()), hvd::root{last});
    CHECK(back.values() == mine.values());
    gpus.gather(mine.view(), hvd::into(all.view()), hvd::root{last});
    CHECK(all.values()[2 * ranks - 2] == last);

    gpus.barrier();
    gpus.plan_allreduce(hvd::fuse(y.view(), x.view()), hvd::sum).run();
    CHECK(y.values()[7] == float(last * n));
}

template <class Gpus>
void check_uneven(Gpus& gpus) {
    const int n = gpus.size(), r = gpus.rank(), last = n - 1;
    std::vector<std::size_t> counts, received(static_cast<std::size_t>(n), std::size_t(r));
    std::vector<int> expected, out, in;
    for (int p = 0; p < n; ++p) {
        counts.push_back(std::size_t(p));
        expected.insert(expected.end(), std::size_t(p), 10 * p);
        out.insert(out.end(), std::size_t(p), 100 * r + p);
        in.insert(in.end(), std::size_t(r), 100 * p + r);
    }
    const std::vector<int> own(std::size_t(r), 10 * r);
    const tensor<int> mine(own, true), all(std::vector<int>(expected.size(), -1), true),
        back(std::vector<int>(own.size(), -1), true);
    gpus.allgather(mine.view(), hvd::into(all.view()), {.counts = counts});
    CHECK(all.values() == expected);
    gpus.scatter(all.view(), hvd::into(back.view()), hvd::root{last}, {.counts = counts});
    CHECK(back.values() == own);
    const tensor<int> rooted(std::vector<int>(expected.size(), -1), true);
    gpus.gather(mine.view(), hvd::into(rooted.view()), hvd::root{last}, {.counts = counts});
    if (r == last) CHECK(rooted.values() == expected);
    const tensor<int> send(out, true), receive(std::vector<int>(in.size(), -1), true);
    gpus.alltoall(send.view(), hvd::into(receive.view()),
                  {.counts = counts, .receive_counts = received});
    CHECK(receive.values() == in);
}

}  // namespace

TEST_CASE("staged tensors") {
    hvd_test::on_ranks([](auto& world) {
        hvd::communicator<hvd::staged<hvd::mpi>> gpus(world);
        check_everything(gpus);
        check_uneven(gpus);
    });
    CHECK(emulation::live_objects() == 0);
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
