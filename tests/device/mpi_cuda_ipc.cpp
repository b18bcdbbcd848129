// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// CUDA IPC between processes, which open each other's memory and events. The GPUs are emulated.

#include <string>

#include <emulation.hpp>

#include "hvd_test.hpp"
#include "ipc_checks.hpp"
#include "tensor.hpp"

namespace mpi_cuda_ipc_tests {

using namespace device_test;
using namespace ipc_test;

namespace {

template <class F>
void on_gpus(F f) {
    hvd_test::on_ranks([&](auto& world) {
        hvd::pin_device(world);
        gpu_communicator gpus(world, {.device_window_bytes = 4096});
        f(gpus);
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

template <class F>
void everywhere(std::initializer_list<std::size_t> counts, F f) {
    on_gpus([&](auto& gpus) {
        for (const place where : {place::plain, place::arena, place::mixed})
            for (const std::size_t count : counts)
                f(gpus, where, count, [&](bool right, const char* what) {
                    CHECK_MESSAGE(right, what, " of ", count, ", place ", int(where));
                });
    });
}

}  // namespace

TEST_CASE("reductions of several types") {
    everywhere({0, 1, 1025, 5000}, [](auto& gpus, place where, std::size_t count, auto&& report) {
        check_reduction<float>(gpus, where, count, hvd::average, report);
        check_reduction<hvd::bfloat16>(gpus, where, count, hvd::sum, report, 0.5);
        check_reduction<std::int16_t>(gpus, where, count, hvd::max, report);
    });
}

TEST_CASE("movements") {
    everywhere({0, 1, 1025, 3000}, [](auto& gpus, place where, std::size_t count, auto&& report) {
        check_movements<std::int32_t>(gpus, where, count, true, report);
        check_movements<std::int16_t>(gpus, where, count, false, report);
        check_uneven_alltoall<double>(gpus, where, count, report);
    });
}

TEST_CASE("plans, and communicators of some of the processes") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        const tensor<float> a(numbers<float>(7, r)), b(numbers<float>(3000, r));
        auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::average);
        for (int i = 0; i < 3; ++i) plan.run();
        CHECK(b.values()[5] == float(5 * (n + 1)) / 2);
        auto half = gpus.split(r % 2);
        const tensor<int> one{1};
        half.allreduce(one.view(), hvd::sum);
        CHECK(one.values()[0] == half.size());
    });
}

TEST_CASE("processes that see one GPU each") {
    hvd_test::on_ranks([](auto& world) {
        emulation::see_only(world.rank());
        CHECK(hvd::pin_device(world) == 0);
        gpu_communicator gpus(world, {.device_window_bytes = 4096});
        check_reduction<float>(gpus, place::mixed, 1025, hvd::average,
                               [](bool right, const char* what) { CHECK_MESSAGE(right, what); });
        CHECK(emulation::calls_of("cudaDeviceCanAccessPeer") == 0);
    });
    CHECK(emulation::live_objects() == 0);
    emulation::see_only(-1);
    emulation::reset();
}

TEST_CASE("processes that see one GPU each, which can't access each other, are refused") {
    hvd_test::on_ranks_from(2, [](auto& world) {
        emulation::see_only(world.rank());
        hvd::pin_device(world);
        if (world.rank() == 1)
            emulation::fail("cudaIpcOpenMemHandle", 1, cudaErrorPeerAccessUnsupported);
        try {
            gpu_communicator gpus(world);
            FAIL("they were not");
        } catch (const hvd::usage_error& e) {
            CHECK(world.rank() == 1);
            CHECK(std::string(e.what()).find("the GPU of rank 1 can't access that of rank 0, GPU-a0"
                                             "000000-0000-0000-0000-000000000000; use") !=
                  std::string::npos);
        } catch (const hvd::peer_error& e) {
            CHECK(world.rank() != 1);
            CHECK(std::string(e.what()).find("can't access that of rank 0") != std::string::npos);
        }
    });
    CHECK(emulation::live_objects() == 0);
    emulation::see_only(-1);
    emulation::reset();
}

TEST_CASE(
    "memory and events are not opened by the process that made them, and not freed while others "
    "have them") {
    void *memory = nullptr, *mapped = nullptr;
    cudaEvent_t event{}, opened{};
    cudaIpcMemHandle_t handle{};
    cudaIpcEventHandle_t event_handle{};
    cudaMalloc(&memory, 100);
    CHECK(cudaIpcGetMemHandle(&handle, memory) == cudaSuccess);
    CHECK(cudaIpcOpenMemHandle(&mapped, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&event, cudaEventInterprocess) == cudaErrorInvalidValue);
    CHECK(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming) ==
          cudaSuccess);
    CHECK(cudaIpcGetEventHandle(&event_handle, event) == cudaSuccess);
    CHECK(cudaIpcOpenEventHandle(&opened, event_handle) != cudaSuccess);
    cudaEventDestroy(event);
    cudaFree(memory);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("processes whose GPUs have no CUDA IPC are refused") {
    hvd_test::on_ranks_from(2, [](auto& world) {
        emulation::answer("cudaDevAttrIpcEventSupport", world.rank() == 1 ? 0 : 1);
        try {
            gpu_communicator gpus(world);
            FAIL("they were not");
        } catch (const hvd::usage_error& e) {
            CHECK(std::string(e.what()).find("the GPU of rank 1 has no CUDA IPC") !=
                  std::string::npos);
        }
        emulation::reset();
    });
    CHECK(emulation::live_objects() == 0);
}

}  // namespace mpi_cuda_ipc_tests
