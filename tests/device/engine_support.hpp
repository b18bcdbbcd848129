// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Engines with tensors of the host and of devices, on threads as ranks.

#include <thread>

#include <hvd/engine_device.hpp>

#include "support.hpp"
#include "text_of.hpp"

namespace device_test {

using hvd_test::text_of;

using world_communicator = hvd::communicator<hvd::threads>;
template <class Devices>
using mixed_engine = hvd::engine<hvd::threads, Devices>;

#define every_kind hvd::nccl, hvd::staged<hvd::threads>

// Nothing is left after the ranks have ended.
inline void check_clean() {
    CHECK(emulation::live_objects() == 0);
    CHECK(emulation::disagreements().empty());
    emulation::reset();
}

// Runs f(engine) on so many threads as ranks, each with an emulated GPU.
template <class Devices, class F>
void on_engines_of(int ranks, F f, const hvd::engine_options& options = {}) {
    INFO("on ", ranks, " ranks");
    hvd::run_threads(ranks, [&](world_communicator& world) {
        hvd::communicator<Devices> gpus(world, {.timeout = 120s});
        hvd::engine e{world, gpus, options};
        f(e);
    });
    check_clean();
}
template <class Devices, class F>
void on_engines(F f, int least = 1, const hvd::engine_options& options = {}) {
    for (int ranks = least; ranks <= 4; ++ranks) on_engines_of<Devices>(ranks, f, options);
}

template <class T>
std::vector<T> filled(std::size_t count, T value) {
    return std::vector<T>(count, value);
}

// 1 + … + n.
constexpr int sum_to(int n) { return n * (n + 1) / 2; }

struct user_stream {
    cudaStream_t handle{};
    user_stream() { cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking); }
    user_stream(const user_stream&) = delete;
    ~user_stream() { cudaStreamDestroy(handle); }
};

// A kernel that takes long and computes a number for each element.
template <class F>
void compute(cudaStream_t stream, const tensor<float>& x, int count, F f) {
    emulation::enqueue(stream, [] { std::this_thread::sleep_for(2ms); });
    emulation::launch(stream, count, [f, data = x.data()](int i) {
        auto* const seen =
            reinterpret_cast<float*>(emulation::seen_by_device(data + i, sizeof(float)));
        *seen = f(*seen);
    });
}

inline bool has(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
}

}  // namespace device_test
