// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Times of hvd beside those of what it is made of. Nothing is judged: a report shows them.

#include <algorithm>
#include <chrono>
#include <mutex>

#include <hvd/threads.hpp>

#include "gpu_forked.hpp"
#include "tensor.hpp"

namespace on_a_gpu {

namespace {

using device_test::tensor;
using hvd::detail::cuda_memory, hvd::detail::tile;
using kind = cuda_memory::kind;

// The median time of one call on the host, in microseconds. If `waits`, it includes the device.
template <class F>
double microseconds(cudaStream_t stream, bool waits, int calls, F f) {
    std::vector<double> times;
    for (int round = 0; round < 5; ++round) {
        cudaStreamSynchronize(stream);
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < calls; ++i) f();
        if (waits) cudaStreamSynchronize(stream);
        const auto end = std::chrono::steady_clock::now();
        times.push_back(std::chrono::duration<double, std::micro>(end - begin).count() / calls);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// One rank on a communicator of NCCL's own. A scale makes it call NCCL.
void time_of_a_call() {
    ncclUniqueId id;
    ncclComm_t handle = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    hvd::detail::check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId", 0);
    hvd::detail::check_nccl(ncclCommInitRankConfig(&handle, 1, id, 0, &config),
                            "ncclCommInitRankConfig", 0);
    {
        hvd::communicator<hvd::nccl> gpus(handle, hvd::borrow);
        const hvd::detail::cuda_stream stream(0);
        const tensor<float> x(std::vector<float>(1024, 0));
        const double own = microseconds(stream.get(), false, 100, [&] {
            gpus.allreduce_async(x.view(), hvd::sum, {.prescale = 2, .stream = stream.get()})
                .wait(stream.get());
        });
        ncclRedOp_t doubled;
        float two = 2;
        ncclRedOpCreatePreMulSum(&doubled, &two, ncclFloat32, ncclScalarHostImmediate, handle);
        const double raw = microseconds(stream.get(), false, 100, [&] {
            ncclAllReduce(x.data(), x.data(), 1024, ncclFloat32, doubled, handle, stream.get());
        });
        cudaStreamSynchronize(stream.get());
        ncclRedOpDestroy(doubled, handle);
        std::printf("time: a call of 4 KiB takes the host %.2f us, and NCCL's %.2f us\n", own, raw);
    }
    ncclCommDestroy(handle);
}

void time_of_packing() {
    constexpr std::size_t tensors = 256, bytes = 64 << 10;
    const cuda_memory from(kind::device, tensors * bytes, 0), to(kind::device, tensors * bytes, 0);
    std::vector<tile> tiles;
    for (std::size_t i = 0; i < tensors; ++i)
        hvd::detail::cut_into_tiles(tiles, from.data() + i * bytes,
                                    to.data() + (tensors - 1 - i) * bytes, bytes,
                                    hvd::detail::copy_kind::bytes, 1);
    const cuda_memory there(kind::device, tiles.size() * sizeof(tile), 0);
    const hvd::detail::cuda_stream stream(0);
    cudaMemcpyAsync(there.data(), tiles.data(), there.size(), cudaMemcpyHostToDevice, stream.get());
    const double packed = microseconds(stream.get(), true, 10, [&] {
        hvd::detail::launch_tiles_of(reinterpret_cast<const tile*>(there.data()), tiles.size(),
                                     stream.get(), 0);
    });
    const double copied = microseconds(stream.get(), true, 10, [&] {
        cudaMemcpyAsync(to.data(), from.data(), tensors * bytes, cudaMemcpyDeviceToDevice,
                        stream.get());
    });
    std::printf("time: packing 256 tensors of 64 KiB takes %.1f us, and one copy of them %.1f us\n",
                packed, copied);
}

// Two ranks share a GPU. By hand each copies its tensor to pinned memory and back, and reduces
// nothing.
void time_of_staging() {
    constexpr std::size_t count = 4 << 20;
    std::mutex mutex;
    double staged = 0, by_hand = 0;
    hvd::run_threads(2, [&](hvd::communicator<hvd::threads>& world) {
        hvd::pin_device(world, {.share = true});
        hvd::communicator<hvd::staged<hvd::threads>> gpus(world,
                                                          {.timeout = std::chrono::seconds(60)});
        const hvd::detail::cuda_stream stream(world.rank());
        const tensor<float> x(std::vector<float>(count, 0));
        const cuda_memory pinned(kind::pinned, count * sizeof(float), world.rank());
        world.barrier();
        const double own =
            microseconds(stream.get(), true, 1, [&] { gpus.allreduce(x.view(), hvd::sum); });
        world.barrier();
        const double hand = microseconds(stream.get(), true, 1, [&] {
            cudaMemcpyAsync(pinned.data(), x.data(), pinned.size(), cudaMemcpyDeviceToHost,
                            stream.get());
            cudaMemcpyAsync(x.data(), pinned.data(), pinned.size(), cudaMemcpyHostToDevice,
                            stream.get());
        });
        world.barrier();
        const std::lock_guard lock(mutex);
        staged = std::max(staged, own);
        by_hand = std::max(by_hand, hand);
    });
    std::printf(
        "time: a staged allreduce of 16 MiB on 2 ranks takes %.0f us, and copies by hand to the "
        "host and back %.0f us\n",
        staged, by_hand);
}

}  // namespace

bool times() {
    return right_in_a_process("times", 2, [] {
        time_of_a_call();
        time_of_packing();
        time_of_staging();
    });
}

}  // namespace on_a_gpu
