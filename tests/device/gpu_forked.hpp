// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Parts of the program for a machine with GPUs run in forked processes. Each part says what held in
// a line that tools/test/gpu_report.py reads.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <hvd/nccl.hpp>

#include "forked.hpp"

namespace on_a_gpu {

inline std::atomic<int> failures = 0;  // of this process

inline void check(bool right, const char* what, const auto& ranks) {
    if (right) return;
    std::fprintf(stderr, "wrong on rank %d of %d: %s\n", ranks.rank(), ranks.size(), what);
    ++failures;
}

// The number of GPUs that a process sees. The parent of all must not use CUDA.
inline int gpus_of_this_machine() {
    static const int found = device_test::status_of(device_test::in_a_process([] {
        int n = 0;
        return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
    }));
    return found;
}

// Chooses the GPU of a process. If they share it, they are hosts of their own to NCCL, which moves
// their data by sockets.
inline void take_a_gpu(int rank, int ranks) {
    const int gpus = gpus_of_this_machine();
    setenv("NCCL_DEBUG", "WARN", 0);
    setenv("CUDA_MODULE_LOADING", "LAZY", 1);  // a kernel is loaded at its first launch
    if (ranks > gpus) {
        for (const auto& [name, value] : {std::pair{"NCCL_SOCKET_IFNAME", "lo"},
                                          {"NCCL_IB_DISABLE", "1"},
                                          {"NCCL_MNNVL_ENABLE", "0"},
                                          {"NCCL_NVLS_ENABLE", "0"},
                                          {"NCCL_MAX_CTAS", "1"}})
            setenv(name, value, 0);
        setenv("NCCL_HOSTID", ("hvd-test-" + std::to_string(rank)).c_str(), 1);
    }
    cudaSetDevice(gpus > 0 ? rank % gpus : 0);
}

inline bool say(const char* what, int ranks, bool right) {
    std::printf("%s, %d ranks on %d GPUs: %s\n", what, ranks, gpus_of_this_machine(),
                right ? "held" : "failed");
    std::fflush(stdout);
    return right;
}

// Runs f in forked processes, and returns their statuses: 0 if nothing was wrong.
template <class F>
std::vector<int> ends_of_processes(int ranks, F f) {
    gpus_of_this_machine();
    return device_test::run_forked(ranks, [&](hvd::communicator<device_test::forked>& world) {
        alarm(200);  // one that hangs is killed, so that the promises behind its own are checked
        take_a_gpu(world.rank(), ranks);
        try {
            f(world, [&](bool right, const char* which) { check(right, which, world); });
        } catch (const std::exception& e) {
            std::fprintf(stderr, "rank %d of %d: %s\n", world.rank(), ranks, e.what());
            ++failures;
        }
        return failures == 0 ? 0 : 1;
    });
}

// Returns true if each process ends as it should: with 0, or killed by SIGKILL where the last one
// is.
template <class F>
bool right_on_processes(const char* what, int ranks, bool last_is_killed, F f) {
    const std::vector<int> ends = ends_of_processes(ranks, f);
    bool right = true;
    for (int rank = 0; rank < ranks; ++rank)
        right = right && ends[std::size_t(rank)] ==
                             (last_is_killed && rank == ranks - 1 ? 128 + SIGKILL : 0);
    return say(what, ranks, right);
}

// The number of ranks for which each of several promises holds. It is shared with children.
class held_promises {
public:
    explicit held_promises(std::size_t count) : bytes_(count * sizeof(std::atomic<int>)) {
        void* const memory =
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        ranks_ = static_cast<std::atomic<int>*>(memory);
    }
    held_promises(const held_promises&) = delete;
    ~held_promises() { munmap(ranks_, bytes_); }

    std::atomic<int>& operator[](std::size_t i) { return ranks_[i]; }

private:
    std::size_t bytes_;
    std::atomic<int>* ranks_;
};

// Runs f in a process of its own, which alone uses CUDA.
template <class F>
bool right_in_a_process(const char* what, int ranks, F f) {
    gpus_of_this_machine();
    return say(what, ranks, device_test::status_of(device_test::in_a_process([&] {
                                try {
                                    f();
                                } catch (const std::exception& e) {
                                    std::fprintf(stderr, "rank 0 of %d: %s\n", ranks, e.what());
                                    ++failures;
                                }
                                return failures == 0 ? 0 : 1;
                            })) == 0);
}

// The parts, each of which says what it has found.
bool suite();     // gpu_parts.cpp
bool policies();  // gpu_policies.cpp
bool elastic();   // gpu_elastic.cpp
bool times();     // gpu_times.cpp
bool kernels();   // gpu_kernels.cpp, in this process

}  // namespace on_a_gpu
