// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The memory of plans is a symmetric window of NCCL, as that of arenas is.

#include <optional>
#include <thread>

#include "support.hpp"

namespace windows_tests {

using namespace device_test;

namespace {

using gpus_type = hvd::communicator<hvd::nccl>;

// Two small tensors, which a plan packs.
struct packed {
    tensor<float> a, b;
    hvd::device_plan plan;

    explicit packed(gpus_type& gpus)
        : a{float(gpus.rank() + 1)},
          b{2, float(gpus.rank())},
          plan(gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum)) {}

    void check_run(const gpus_type& gpus) {
        plan.run();
        const int n = gpus.size();
        CHECK(a.values()[0] == float(n * (n + 1) / 2));
        CHECK(b.values() == std::vector<float>{float(2 * n), float(n * (n - 1) / 2)});
    }
};

// A rank that is alone has none.
std::size_t windows_of(const gpus_type& gpus) {
    return gpus.size() == 1 ? 0 : emulation::windows_of(gpus.native_handle());
}

std::size_t unless_alone(const gpus_type& gpus, int windows) {
    return gpus.size() == 1 ? 0 : std::size_t(windows);
}

}  // namespace

TEST_CASE("NCCL moves the packed tensors of a plan from window to window") {
    on_gpus([](auto& gpus) {
        packed first(gpus);
        CHECK(windows_of(gpus) == unless_alone(gpus, 1));
        first.check_run(gpus);
        gpus.barrier();
        CHECK(emulation::symmetric_calls() == int(unless_alone(gpus, gpus.size())));
        {
            packed second(gpus);
            CHECK(windows_of(gpus) == unless_alone(gpus, 2));
            second.check_run(gpus);
        }
        CHECK(windows_of(gpus) == unless_alone(gpus, 1));
        first.plan = {};
        CHECK(windows_of(gpus) == 0);
        gpus.barrier();
    });
}

TEST_CASE("a plan that packs nothing has no window") {
    on_gpus([](auto& gpus) {
        const tensor<float> a{1};
        auto plan = gpus.plan_allreduce(a.view(), hvd::sum);
        CHECK(windows_of(gpus) == 0);
        plan.run();
        CHECK(a.values()[0] == float(gpus.size()));
        CHECK(emulation::calls_of("ncclCommWindowRegister") == 0);
    });
}

TEST_CASE("while some ranks keep a plan that others dropped, new plans and arenas have no window") {
    on_gpus([](auto& gpus) {
        std::optional<packed> kept(std::in_place, gpus);
        packed other(gpus);
        const bool drops = gpus.rank() == 0;
        if (drops) kept.reset();
        {
            packed next(gpus);
            CHECK(windows_of(gpus) == unless_alone(gpus, drops ? 1 : 2));
            next.check_run(gpus);
            hvd::device_arena arena(gpus, 4096);
            auto x = arena.tensor<float>(hvd::shape(2));
            const float ones[] = {1, 1};
            cudaMemcpy(x.data(), ones, sizeof ones, cudaMemcpyHostToDevice);
            gpus.allreduce(x, hvd::sum);
            float result[2];
            cudaMemcpy(result, x.data(), sizeof result, cudaMemcpyDeviceToHost);
            CHECK(result[1] == float(gpus.size()));
            CHECK(windows_of(gpus) == unless_alone(gpus, drops ? 1 : 2));
        }
        kept.reset();
        packed last(gpus);
        CHECK(windows_of(gpus) == unless_alone(gpus, 2));
        other.check_run(gpus);
        last.check_run(gpus);
        gpus.barrier();
    });
}

TEST_CASE("arenas and plans share the windows of a communicator") {
    on_gpus([](auto& gpus) {
        std::optional<hvd::device_arena> arena(std::in_place, gpus, std::size_t(3) << 20);
        packed first(gpus);
        CHECK(windows_of(gpus) == unless_alone(gpus, 2));
        gpus.barrier();
        arena.reset();
        packed second(gpus);
        CHECK(windows_of(gpus) == unless_alone(gpus, 2));
        first.check_run(gpus);
        second.check_run(gpus);
        gpus.barrier();
    });
}

TEST_CASE("the memory of an arena outlives the work of streams, for which a rank comes late") {
    for (int repeats = 0; repeats < 2; ++repeats)
        on_gpus(
            [](auto& gpus) {
                cudaStream_t stream{};
                cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
                gpus.barrier();  // NCCL connects the ranks in their first call
                std::optional<hvd::device_arena> arena(std::in_place, gpus, 4096);
                const auto x = arena->tensor<float>(hvd::shape(1));
                const float mine = float(gpus.rank() + 1);
                cudaMemcpy(x.data(), &mine, sizeof mine, cudaMemcpyHostToDevice);
                cudaDeviceSynchronize();
                const int n = gpus.size();
                const bool is_late = gpus.rank() + 1 == n;
                if (is_late) {
                    while (emulation::calls_of("ncclAllReduce") < n + n - 1)
                        std::this_thread::yield();
                    std::this_thread::sleep_for(20ms);  // the others end their arenas
                }
                gpus.allreduce_async(x, hvd::sum, {.stream = stream}).wait(stream);
                if (is_late) {
                    float sum = 0;
                    cudaStreamSynchronize(stream);
                    cudaMemcpy(&sum, x.data(), sizeof sum, cudaMemcpyDeviceToHost);
                    CHECK(sum == float(n * (n + 1) / 2));
                }
                arena.reset();
                cudaStreamDestroy(stream);
            },
            2);
}

TEST_CASE("where one rank has no memory for a window, no rank has one, and the plan works") {
    for (int k = 1; k <= 4; ++k)
        on_gpus(
            [k](auto& gpus) {
                gpus.barrier();
                if (gpus.rank() == 0) emulation::fail("ncclMemAlloc", k, 1);
                gpus.barrier();
                packed first(gpus);
                CHECK(windows_of(gpus) == 0);
                first.check_run(gpus);
                packed second(gpus);
                CHECK(windows_of(gpus) == 1);
                second.check_run(gpus);
                gpus.barrier();
            },
            k < 2 ? 2 : k);
}

TEST_CASE("an older NCCL has no windows for plans") {
    for (const int version : {21901, 22606})
        for (int ranks = 1; ranks <= 4; ++ranks) {
            emulation::reset();
            emulation::answer("ncclGetVersion", version);
            hvd::run_threads(ranks, [](hvd::communicator<hvd::threads>& world) {
                gpus_type gpus(world, {.timeout = 20s});
                packed first(gpus);
                first.check_run(gpus);
                CHECK(windows_of(gpus) == 0);
                gpus.barrier();
                CHECK(emulation::calls_of("ncclMemAlloc") == 0);
            });
            CHECK(emulation::live_objects() == 0);
        }
    emulation::reset();
}

TEST_CASE("a plan ends after its communicator, and after an abort") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        for (const bool aborts : {false, true}) {
            INFO("on ", ranks, " ranks");
            hvd::run_threads(ranks, [aborts](hvd::communicator<hvd::threads>& world) {
                std::optional<gpus_type> gpus(std::in_place, world);
                packed first(*gpus);
                first.check_run(*gpus);
                world.barrier();
                if (aborts) gpus->abort();
                gpus.reset();
                if (aborts) CHECK_THROWS_AS(first.plan.run(), hvd::peer_error);
                world.barrier();
            });
            CHECK(emulation::live_objects() == 0);
            CHECK(emulation::disagreements().empty());
            emulation::reset();
        }
}

}  // namespace windows_tests
