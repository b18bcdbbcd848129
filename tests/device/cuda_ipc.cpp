// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// CUDA IPC between ranks that are threads: what it moves and reduces, and what it says when that is not possible.

#include <string>

#include "ipc_checks.hpp"
#include "support.hpp"

using namespace device_test;
using namespace ipc_test;

namespace {

using world_type = hvd::communicator<hvd::threads>;

constexpr place everywhere[] = {place::plain, place::arena, place::mixed};

// Windows of 4 KiB, so that little makes many chunks.
template <class F>
void on_ranks(F f, int least = 1, const hvd::communicator_options& options = {.deadline = 20s, .device_window_bytes = 4096}) {
    for (int ranks = least; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks, [&](world_type& world) {
            gpu_communicator gpus(world, options);
            f(gpus);
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

// For each check, with where it was made.
template <class F>
void everywhere_on_ranks(std::initializer_list<std::size_t> counts, F f) {
    on_ranks([&](auto& gpus) {
        for (const place where : everywhere)
            for (const std::size_t count : counts)
                f(gpus, where, count, [&](bool right, const char* what) {
                    CHECK_MESSAGE(right, what, " of ", count, " on rank ", gpus.rank(), " of ", gpus.size(), ", place ", int(where));
                });
    });
}

}  // namespace

TEST_CASE("reductions around the borders of chunks and slices") {
    everywhere_on_ranks({0, 1, 33, 1023, 1024, 1025, 5000}, [](auto& gpus, place where, std::size_t count, auto&& report) {
        check_reduction<float>(gpus, where, count, hvd::sum, report);
    });
}

TEST_CASE("every operation of every element type") {
    everywhere_on_ranks({777}, [](auto& gpus, place where, std::size_t count, auto&& report) {
        if (where == place::mixed) return;
        check_operations<float>(gpus, where, count, report);
        check_operations<double>(gpus, where, count, report);
        check_operations<hvd::float16>(gpus, where, count, report);
        check_operations<hvd::bfloat16>(gpus, where, count, report);
        check_operations<std::int8_t>(gpus, where, count, report);
        check_operations<std::uint16_t>(gpus, where, count, report);
        check_operations<std::int32_t>(gpus, where, count, report);
        check_operations<std::int64_t>(gpus, where, count, report);
        check_operations<std::uint64_t>(gpus, where, count, report);
    });
}

TEST_CASE("movements around the borders of chunks") {
    everywhere_on_ranks({0, 1, 33, 1023, 1025, 3000}, [](auto& gpus, place where, std::size_t count, auto&& report) {
        check_movements<std::int32_t>(gpus, where, count, true, report);
        check_movements<std::int16_t>(gpus, where, count, false, report);
        check_uneven_alltoall<double>(gpus, where, count, report);
    });
}
