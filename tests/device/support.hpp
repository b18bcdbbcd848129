// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include <emulation.hpp>
#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>
#include "tensor.hpp"

namespace device_test {

using namespace std::chrono_literals;

// Sanitizers make programs slower, and timeouts that are meant to be missed longer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int slowness = 5;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr int slowness = 5;
#else
constexpr int slowness = 1;
#endif
#else
constexpr int slowness = 1;
#endif

// NCCL's configuration with what `set` changes.
template <class F>
ncclConfig_t configured(F set) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    set(config);
    return config;
}

// Runs f on 1 to 4 threads as ranks, each with an emulated GPU. Leaked objects are an error.
template <class F>
void on_gpus(F f, int least = 1, const hvd::communicator_options& options = {.timeout = 10s}) {
    for (int ranks = least; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks, [&](hvd::communicator<hvd::threads>& world) {
            hvd::communicator<hvd::nccl> gpus(world, options);
            f(gpus);
        });
        CHECK(emulation::live_objects() == 0);
        CHECK(emulation::disagreements().empty());
        emulation::reset();
    }
}

}  // namespace device_test
