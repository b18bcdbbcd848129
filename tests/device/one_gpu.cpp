// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The program of docs/device.md for ranks that share a GPU. It has no kernels of hvd's and needs no
// NCCL.

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include <hvd/cuda.hpp>
#include <hvd/threads.hpp>

using namespace std::chrono_literals;

// Averages a gradient over the ranks, and returns its first element on the host.
template <class Backend>
float first_of_average(hvd::communicator<Backend>& world) {
    const std::vector<float> own(1000, float(world.rank()));
    float first = -1;
    //! [one_gpu]
    hvd::pin_device(world, {.share = true});  // ranks that outnumber the GPUs share them
    hvd::communicator<hvd::staged<Backend>> gpus(world, {.timeout = 30s});
    void* memory = nullptr;
    cudaMalloc(&memory, 1000 * sizeof(float));
    cudaMemcpy(memory, own.data(), 1000 * sizeof(float), cudaMemcpyHostToDevice);
    auto gradient = hvd::device_view(static_cast<float*>(memory), 1000);
    gpus.allreduce(gradient, hvd::average);
    //! [one_gpu]
    cudaMemcpy(&first, memory, sizeof first, cudaMemcpyDeviceToHost);
    cudaFree(memory);
    return first;
}

int main() try {
    hvd::run_threads(5, [](hvd::communicator<hvd::threads>& world) {
        const float first = first_of_average(world);
        if (first != 2)
            throw hvd::usage_error(world.rank(), "the average of 0, 1, 2, 3 and 4 is wrong");
        if (world.rank() == 0) std::printf("%d ranks, average %g\n", world.size(), first);
    });
} catch (const hvd::error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
