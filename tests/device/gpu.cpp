// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The device path on the real libraries: 1 to 4 forked processes on one GPU. Each is a host of its
// own to NCCL, or reaches the others' memory by CUDA IPC. Threads do the latter too. Without a GPU
// the program prints hvd's error and exits with 77.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>

#include "fork_ranks.hpp"
#include "ipc_checks.hpp"
#include "tensor.hpp"

namespace {

using device_test::numbers, device_test::tensor;
using gpu_communicator = hvd::communicator<hvd::nccl>;

std::atomic<int> failures = 0;

void check(bool right, const char* what, const auto& gpus) {
    if (right) return;
    std::fprintf(stderr, "wrong on rank %d of %d: %s\n", gpus.rank(), gpus.size(), what);
    ++failures;
}

template <class T>
void reductions(gpu_communicator& gpus, std::size_t count) {
    const int n = gpus.size(), r = gpus.rank();
    const tensor<T> x(numbers<T>(count, r)), y(numbers<T>(count, r)), z(numbers<T>(count, r));
    gpus.allreduce(x.view(), hvd::sum);
    gpus.allreduce(y.view(), hvd::average);
    gpus.plan_allreduce(hvd::fuse(z.view(), x.view()), hvd::max).run();
    const auto one = numbers<T>(count, 0), sums = x.values(), means = y.values(), most = z.values();
    bool right = true;
    for (std::size_t i = 0; i < count; ++i) {
        const float a = float(one[i]), mean = a * float(n + 1) / 2;
        right =
            right && float(sums[i]) == a * float(n * (n + 1) / 2) && float(most[i]) == a * float(n);
        right = right &&
                std::abs(float(means[i]) - mean) <= mean * (sizeof(T) == 2 ? 0x1p-8f : 0x1p-22f);
    }
    check(right, "a reduction", gpus);
}

void movements(gpu_communicator& gpus) {
    const int n = gpus.size(), r = gpus.rank();
    std::vector<int> out, in;
    for (int p = 0; p < n; ++p) out.push_back(10 * r + p), in.push_back(10 * p + r);
    const tensor<int> send(out), receive(std::vector<int>(out.size(), -1)), part{-1};
    gpus.alltoall(send.view(), hvd::into(receive.view()));
    check(receive.values() == in, "alltoall", gpus);
    gpus.scatter(send.view(), hvd::into(part.view()), hvd::root{n - 1});
    check(part.values()[0] == 10 * (n - 1) + r, "scatter", gpus);
    gpus.allgather(part.view(), hvd::into(receive.view()));
    check(receive.values().front() == 10 * (n - 1), "allgather", gpus);
    gpus.broadcast(send.view(), hvd::root{n - 1});
    check(send.values().front() == 10 * (n - 1), "broadcast", gpus);
    gpus.barrier();
}

// Plans pack, cast and move large tensors, at offsets that are not aligned to 16 bytes.
void plans(gpu_communicator& gpus) {
    const int n = gpus.size(), r = gpus.rank();
    const tensor<float> a(numbers<float>(1003, r)), large(numbers<float>(1'000'003, r));
    const tensor<hvd::bfloat16> b(numbers<hvd::bfloat16>(77, r));
    const auto odd = hvd::device_view(a.data() + 1, 1001);
    auto plan =
        gpus.plan_allreduce(hvd::fuse(odd, b.view(), hvd::device_view(large.data() + 3, 1'000'000)),
                            hvd::average, {}, hvd::cast<hvd::bfloat16>{});
    plan.run();
    check(a.values()[0] == 0 && a.values()[1] == 0.5f * float(n + 1) &&
              a.values()[1002] == float(1002 % 11 * (r + 1)),
          "a plan's edges", gpus);
    check(large.values()[500'000] == float(500'000 % 11) * 0.5f * float(n + 1),
          "a plan's large tensor", gpus);
}

void graph(gpu_communicator& gpus) {
    cudaStream_t stream{};
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    const tensor<float> a{1}, b{2};
    auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum);
    plan.run(stream);  // NCCL connects before the capture
    cudaGraph_t captured{};
    cudaGraphExec_t launched{};
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    (void)plan.run_async(stream);
    cudaStreamEndCapture(stream, &captured);
    cudaGraphInstantiate(&launched, captured, 0);
    cudaGraphLaunch(launched, stream);
    cudaStreamSynchronize(stream);
    check(a.values()[0] == float(gpus.size() * gpus.size()), "a captured plan", gpus);
    cudaGraphExecDestroy(launched);
    cudaGraphDestroy(captured);
    cudaStreamDestroy(stream);
}

void arena(gpu_communicator& gpus) {
    hvd::device_arena memory(gpus, std::size_t(4) << 20);
    const auto x = memory.tensor<float>(hvd::shape(1000)), y = memory.tensor<float>(hvd::shape(24));
    const std::vector<float> ones(1000, 1);
    cudaMemcpy(x.data(), ones.data(), 4000, cudaMemcpyHostToDevice);
    cudaMemcpy(y.data(), ones.data(), 96, cudaMemcpyHostToDevice);
    auto plan = gpus.plan_allreduce(hvd::fuse(x, y), hvd::sum);
    plan.run();
    float got = 0;
    cudaMemcpy(&got, y.data() + 23, sizeof got, cudaMemcpyDeviceToHost);
    check(got == float(gpus.size()) && plan.packed_bytes() == 0, "an arena", gpus);
}

// Windows have 1 MiB, so that the larger tensors go in chunks.
constexpr hvd::communicator_options ipc_options{.deadline = std::chrono::seconds(60),
                                                .device_window_bytes = std::size_t(1) << 20};

void cuda_ipc(ipc_test::gpu_communicator& gpus) {
    using ipc_test::place;
    const auto report = [&](bool right, const char* what) { check(right, what, gpus); };
    for (const place where : {place::plain, place::arena, place::mixed}) {
        for (const std::size_t count :
             {std::size_t(0), std::size_t(1), std::size_t(1001), std::size_t(1'000'003)}) {
            ipc_test::check_reduction<float>(gpus, where, count, hvd::average, report, 0.3, 1.7);
            ipc_test::check_movements<std::int32_t>(gpus, where, count, true, report);
            ipc_test::check_movements<std::int16_t>(gpus, where, count, false, report);
            ipc_test::check_uneven_alltoall<double>(gpus, where, count, report);
        }
        ipc_test::check_operations<float>(gpus, where, 10'007, report);
        ipc_test::check_operations<double>(gpus, where, 10'007, report);
        ipc_test::check_operations<hvd::float16>(gpus, where, 10'007, report);
        ipc_test::check_operations<hvd::bfloat16>(gpus, where, 10'007, report);
        ipc_test::check_operations<std::int8_t>(gpus, where, 10'007, report);
        ipc_test::check_operations<std::int32_t>(gpus, where, 10'007, report);
        ipc_test::check_operations<std::uint64_t>(gpus, where, 10'007, report);
    }
    const int n = gpus.size(), r = gpus.rank();
    const tensor<float> a(numbers<float>(1003, r)), large(numbers<float>(1'000'003, r));
    auto plan = gpus.plan_allreduce(hvd::fuse(hvd::device_view(a.data() + 1, 1001), large.view()),
                                    hvd::sum);
    for (int run = 0; run < 3; ++run) plan.run();
    check(a.values()[1] == float(n * n * n * (n + 1) / 2) &&
              large.values()[7] == 7 * float(n * n * n * (n + 1) / 2),
          "a plan of cuda_ipc", gpus);
    gpus.barrier();
}

// Runs several threads of one process that share one GPU.
void cuda_ipc_of_threads() {
    for (int ranks = 1; ranks <= 3; ++ranks)
        hvd::run_threads(ranks, [](hvd::communicator<hvd::threads>& world) {
            ipc_test::gpu_communicator gpus(world, ipc_options);
            cuda_ipc(gpus);
        });
}

// The data that the processes share before NCCL exists, and instead of it.
struct meeting {
    ncclUniqueId id;
    int ready;
    device_test::fork_area calls, farewell;
};

int run_rank(int rank, int size, meeting& place) {
    for (const auto& [name, value] : {std::pair{"NCCL_SOCKET_IFNAME", "lo"},
                                      {"NCCL_IB_DISABLE", "1"},
                                      {"NCCL_MNNVL_ENABLE", "0"},
                                      {"NCCL_NVLS_ENABLE", "0"},
                                      {"NCCL_MAX_CTAS", "1"},
                                      {"NCCL_DEBUG", "WARN"}})
        setenv(name, value, 0);
    setenv("NCCL_HOSTID", ("hvd-test-" + std::to_string(rank)).c_str(), 1);
    try {
        if (rank == 0) {
            hvd::detail::check_nccl(ncclGetUniqueId(&place.id), "ncclGetUniqueId", 0);
            __atomic_store_n(&place.ready, 1, __ATOMIC_RELEASE);
        }
        while (__atomic_load_n(&place.ready, __ATOMIC_ACQUIRE) == 0) usleep(1000);
        ncclComm_t handle = nullptr;
        hvd::detail::check_nccl(ncclCommInitRank(&handle, size, place.id, rank), "ncclCommInitRank",
                                rank);
        gpu_communicator gpus(handle, hvd::adopt, {.deadline = std::chrono::seconds(60)});
        for (const std::size_t count : {std::size_t(1), std::size_t(1001), std::size_t(300'000)}) {
            reductions<float>(gpus, count);
            reductions<hvd::bfloat16>(gpus, count);
            reductions<hvd::float16>(gpus, count);
        }
        movements(gpus);
        plans(gpus);
        graph(gpus);
        arena(gpus);
        gpus.barrier();
        auto ipc =
            hvd::detail::on_one_node<ipc_test::gpu_communicator>(hvd::detail::make_cuda_ipc_session(
                std::make_unique<device_test::fork_ranks>(place.calls, rank, size),
                std::make_unique<device_test::fork_ranks>(place.farewell, rank, size),
                ipc_options));
        cuda_ipc(ipc);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d of %d: %s\n", rank, size, e.what());
        ++failures;
    }
    return failures == 0 ? 0 : 1;
}

// Runs f in its own process, since CUDA does not survive a fork.
template <class F>
pid_t in_a_process(F f) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child != 0) return child;
    const int status = f();
    std::fflush(nullptr);
    _exit(status);
}

int status_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// Returns 0 if there is a GPU, 77 if there is none and hvd says so, and 1 if it says something
// else.
int look_for_a_gpu() {
    int result = 0;
    hvd::run_threads(1, [&](hvd::communicator<hvd::threads>& world) {
        try {
            hvd::pin_device(world);
            gpu_communicator gpus(world);
            gpus.barrier();
        } catch (const hvd::cuda_error& e) {
            const bool said = std::string(e.what()).find("no usable GPU or driver was found") !=
                              std::string::npos;
            std::printf("%s%s\n", said ? "" : "without a GPU hvd says: ", e.what());
            result = said ? 77 : 1;
        }
    });
    return result;
}

}  // namespace

int main() {
    if (const int found = status_of(in_a_process(look_for_a_gpu)); found != 0) return found;
    int failed = status_of(in_a_process([] {
        cuda_ipc_of_threads();
        return failures == 0 ? 0 : 1;
    }));
    std::printf("threads on one GPU: %s\n", failed == 0 ? "right" : "wrong");
    for (int size = 1; size <= 4; ++size) {
        auto* const place = static_cast<meeting*>(mmap(
            nullptr, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        std::vector<pid_t> ranks;
        for (int rank = 0; rank < size; ++rank)
            ranks.push_back(in_a_process([=] { return run_rank(rank, size, *place); }));
        for (const pid_t rank : ranks) failed += status_of(rank);
        std::printf("%d ranks on one GPU: %s\n", size, failed == 0 ? "right" : "wrong");
        munmap(place, sizeof(meeting));
    }
    return failed == 0 ? 0 : 1;
}
