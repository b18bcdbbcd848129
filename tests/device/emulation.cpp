// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Tests of the emulation itself, on which the tests of the device path rely.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <thread>

#include <emulation.hpp>

namespace {

struct stream {
    cudaStream_t handle{};
    stream() { cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking); }
    ~stream() { cudaStreamDestroy(handle); }
};

struct memory {
    float* data{};
    explicit memory(std::size_t count) {
        cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(float));
    }
    ~memory() { cudaFree(data); }
    float operator[](std::size_t i) const {
        return *reinterpret_cast<float*>(emulation::seen_by_device(data + i, sizeof(float)));
    }
    void set(std::size_t i, float x) {
        *reinterpret_cast<float*>(emulation::seen_by_device(data + i, sizeof(float))) = x;
    }
};

template <class F>
int signal_of_child(F f) {
    const pid_t child = fork();
    if (child == 0) {
        std::signal(SIGSEGV, SIG_DFL);
        std::signal(SIGABRT, SIG_DFL);
        f();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

ncclResult_t settle(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) ncclCommGetAsyncError(comm, &state);
    return state;
}

// Runs f on threads as ranks, each with a communicator that does not block.
template <class F>
void on_ranks(int size, F f) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([=] {
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.blocking = 0;
            ncclComm_t comm = nullptr;
            ncclCommInitRankConfig(&comm, size, id, rank, &config);
            settle(comm);
            f(comm, rank);
        });
    for (std::thread& t : threads) t.join();
}

}  // namespace

TEST_CASE("the host faults on device memory, which is poisoned") {
    const memory m(3);
    CHECK(std::isnan(m[2]));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK(signal_of_child([&] { *const_cast<volatile float*>(m.data) = 1; }) == SIGSEGV);
    CHECK(signal_of_child([&] { emulation::seen_by_device(m.data + 3, sizeof(float)); }) ==
          SIGABRT);
#endif
}

TEST_CASE("work of one stream keeps its order, and an event carries it to another") {
    const stream a, b;
    memory x(1), y(1);
    const float one = 1;
    cudaEvent_t written{};
    cudaEventCreateWithFlags(&written, cudaEventDisableTiming);
    cudaMemcpyAsync(x.data, &one, sizeof one, cudaMemcpyHostToDevice, a.handle);
    cudaEventRecord(written, a.handle);
    cudaStreamWaitEvent(b.handle, written, 0);
    cudaMemcpyAsync(y.data, x.data, sizeof one, cudaMemcpyDeviceToDevice, b.handle);
    cudaStreamSynchronize(b.handle);
    CHECK(cudaEventQuery(written) == cudaSuccess);
    CHECK(y[0] == 1);
    cudaEventDestroy(written);
}

TEST_CASE("a launch runs its body for every block and thread") {
    const stream s;
    std::array<int, 12> seen{};
    emulation::launch(s.handle, 3, 4,
                      [&](int block, int thread) { ++seen[std::size_t(block * 4 + thread)]; });
    cudaStreamSynchronize(s.handle);
    for (const int n : seen) CHECK(n == 1);
}

TEST_CASE("a collective reduces what the ranks bring") {
    for (const int size : {1, 2, 3, 4})
        on_ranks(size, [size](ncclComm_t comm, int rank) {
            const stream s;
            memory x(1);
            x.set(0, float(rank));
            CHECK(ncclAllReduce(x.data, x.data, 1, ncclFloat32, ncclSum, comm, s.handle) ==
                  ncclInProgress);
            CHECK(settle(comm) == ncclSuccess);
            cudaStreamSynchronize(s.handle);
            CHECK(x[0] == float(size * (size - 1) / 2));
            ncclCommDestroy(comm);
        });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("ranks that call different things are told apart") {
    on_ranks(2, [](ncclComm_t comm, int rank) {
        const stream s;
        memory x(2);
        ncclAllReduce(x.data, x.data, std::size_t(1 + rank), ncclFloat32, ncclSum, comm, s.handle);
        settle(comm);
        cudaStreamSynchronize(s.handle);
        ncclCommDestroy(comm);
    });
    REQUIRE(emulation::disagreements().size() == 1);
    CHECK(emulation::disagreements()[0].find("rank 1 has ncclAllReduce count 2") !=
          std::string::npos);
    emulation::reset();
}

TEST_CASE("a dead peer is an asynchronous error, and an abort ends the wait for it") {
    on_ranks(2, [](ncclComm_t comm, int rank) {
        const stream s;
        memory x(1);
        if (rank == 1) {
            emulation::kill(comm);
        } else {
            ncclAllReduce(x.data, x.data, 1, ncclFloat32, ncclSum, comm, s.handle);
            ncclResult_t state = ncclSuccess;
            while (state != ncclRemoteError) ncclCommGetAsyncError(comm, &state);
        }
        ncclCommAbort(comm);
        cudaStreamSynchronize(s.handle);
    });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("the k-th call fails, and only that") {
    emulation::fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
    void *a = nullptr, *b = nullptr, *c = nullptr;
    CHECK(cudaMalloc(&a, 8) == cudaSuccess);
    CHECK(cudaMalloc(&b, 8) == cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&c, 8) == cudaSuccess);
    cudaFree(a);
    cudaFree(c);
    emulation::reset();
}
