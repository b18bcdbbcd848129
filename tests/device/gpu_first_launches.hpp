// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// CUDA may load a kernel at its first launch, and wait for the device then (CUDA Programming Guide,
// "Lazy Loading"): for a collective whose peers wait for what comes behind that launch.

#include <cmath>
#include <vector>

#include <hvd/kernel/cuda/feedback.hpp>
#include <hvd/kernel/cuda/tile.hpp>
#include <hvd/kernel/cuda/update.hpp>

#include "gpu_suite.hpp"

namespace gpu_suite {

// Launches each kernel of hvd's once. All memory is there before.
class every_kernel {
public:
    explicit every_kernel(int rank) : rank_(rank) { cudaDeviceSynchronize(); }

    void launch(cudaStream_t stream) const {
        using namespace hvd::detail;
        launch_scale(bytes_of(scaled_), 8, copy_kind::float32, 2, stream, rank_);
        feed_back(half_, hvd::dtype::float16, stream);
        feed_back(brain_, hvd::dtype::bfloat16, stream);
        for (const update_work work : {update_work::measure, update_work::look})
            update(work, update_kind::sgd, stream);
        for (const update_kind kind : {update_kind::sgd, update_kind::adam})
            update(update_work::finish, kind, stream);
    }

    // Called when the stream is done.
    bool are_right() const {
        const auto progress = progress_.values()[0];
        return scaled_.values()[7] == 2 && float(half_.values()[7]) == 3 &&
               float(brain_.values()[7]) == 3 && progress.squares == 32 && progress.steps == 2 &&
               std::abs(parameter_.values()[7] - 0.979256f) < 1e-5f;  // 1 - 0.02 - 0.000744
    }

private:
    template <class T>
    static std::byte* bytes_of(const tensor<T>& x) {
        return reinterpret_cast<std::byte*>(x.data());
    }

    template <class Half>
    void feed_back(const tensor<Half>& to, hvd::dtype id, cudaStream_t stream) const {
        hvd::detail::launch_feedback(
            {gradient_.data(), residual_.data(), bytes_of(to), next_.data(), 8, id}, stream, rank_);
    }

    void update(hvd::detail::update_work work, hvd::detail::update_kind kind,
                cudaStream_t stream) const {
        hvd::detail::update_launch launch{};
        launch.tiles = tiles_.data();
        launch.progress = progress_.data();
        launch.clocks = clocks_.data();
        launch.clock_count = launch.blocks = 1;
        launch.work = work;
        launch.rule.kind = kind;
        launch.rule.rate = kind == hvd::detail::update_kind::sgd ? 0.01 : 0.001;
        launch.sums = sums_.data();
        hvd::detail::check_cuda(hvd::detail::kernels.update(launch, stream), "an update", rank_);
    }

    static tensor<float> eight(float x) { return tensor<float>(std::vector<float>(8, x)); }

    int rank_;
    const tensor<float> scaled_ = eight(1), gradient_ = eight(2), residual_ = eight(1),
                        next_ = eight(0), parameter_ = eight(1), state1_ = eight(0),
                        state2_ = eight(0);
    const tensor<hvd::float16> half_{std::vector<hvd::float16>(8)};
    const tensor<hvd::bfloat16> brain_{std::vector<hvd::bfloat16>(8)};
    const tensor<hvd::detail::update_progress> progress_{hvd::detail::update_progress{}};
    const tensor<hvd::detail::update_clock> clocks_{hvd::detail::update_clock::after({}, 0)};
    const tensor<double> sums_{0.0};
    const tensor<hvd::detail::update_tile> tiles_{
        {bytes_of(parameter_), bytes_of(gradient_), nullptr, bytes_of(state1_), bytes_of(state2_),
         8, 0, hvd::dtype::float32, hvd::dtype::float32, true, false}};
};

// The last rank comes to a collective when all others have launched every kernel behind it.
template <class World>
void first_launches(World& world, const reporter& report) {
    const bool comes_late = world.rank() + 1 == world.size();
    const float n = float(world.size());
    gpu_communicator gpus(world, {.timeout = std::chrono::seconds(30)});
    const tensor<float> x{1};
    const every_kernel kernels(world.rank());
    cudaStream_t waiting{}, working{};
    cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&working, cudaStreamNonBlocking);
    gpus.allreduce(x.view(), hvd::sum);  // NCCL has connected the ranks
    world.barrier();
    const auto call = [&] {
        gpus.allreduce_async(x.view(), hvd::sum, {.stream = waiting}).wait(waiting);
    };
    if (!comes_late) {
        call();
        kernels.launch(working);
        cudaStreamSynchronize(working);
    }
    world.barrier();
    if (comes_late) call();
    cudaStreamSynchronize(waiting);
    gpus.barrier();  // throws if a launch has waited until the call's timeout
    report(x.values()[0] == n * n, "a call beside which kernels are launched first");
    report(comes_late || kernels.are_right(), "kernels that are launched beside a call");
    cudaStreamDestroy(waiting);
    cudaStreamDestroy(working);
}

}  // namespace gpu_suite
