// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <hvd/elastic_nccl.hpp>

#include "contributions.hpp"
#include "support.hpp"

namespace device_test {

using gpus_type = hvd::communicator<hvd::nccl>;

// A trainer on a GPU whose result does not depend on the number of ranks.
struct trainer {
    tensor<float> weights{0, 0, 0}, gradient{0, 0, 0};
    cudaStream_t stream = nullptr;

    trainer() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
    trainer(const trainer&) = delete;
    ~trainer() { cudaStreamDestroy(stream); }

    void differentiate(int rank, int size, std::int64_t step) {
        const std::vector<float> sum = contributions_of(rank, size, step);
        cudaMemcpyAsync(gradient.data(), sum.data(), 12, cudaMemcpyHostToDevice, stream);
        cudaStreamSynchronize(stream);
    }
    // The host does not wait.
    void step(gpus_type& gpus, std::int64_t number) {
        differentiate(gpus.rank(), gpus.size(), number);
        gpus.allreduce_async(gradient.view(), hvd::sum, {.stream = stream}).wait(stream);
        emulation::enqueue(stream, [w = weights.data(), g = gradient.data()] {
            auto* const to = reinterpret_cast<float*>(emulation::seen_by_device(w, 12));
            const auto* const from = reinterpret_cast<float*>(emulation::seen_by_device(g, 12));
            for (int i = 0; i < 3; ++i) to[i] += from[i];
        });
    }
};

}  // namespace device_test
