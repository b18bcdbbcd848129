// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Tests of the emulation itself, on which the tests of the device path rely.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <string>
#include <thread>

#include <emulation.hpp>

#include "driver.hpp"

namespace emulation_tests {

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

// Runs f on threads as ranks, each with a communicator that does not block unless told.
template <class F>
void on_ranks(int size, F f, bool blocking = false) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([=] {
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.blocking = blocking ? 1 : 0;
            ncclComm_t comm = nullptr;
            ncclCommInitRankConfig(&comm, size, id, rank, &config);
            settle(comm);
            f(comm, rank);
        });
    for (std::thread& t : threads) t.join();
}

// True if a call of the communicator does not end within a moment.
bool is_in_progress(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    for (int i = 0; i < 30 && state == ncclInProgress; ++i) {
        ncclCommGetAsyncError(comm, &state);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return state == ncclInProgress;
}

// Runs f(comm, rank) on ranks in processes of so many threads each, after before(rank). The ranks
// may still be joining each other. Rank 0 makes the id. Returns the signals that have ended
// processes; SIGUSR1 stands for one in which f was not true.
template <class F, class Before = void (*)(int)>
std::vector<int> on_processes(int size, int threads, F f, Before before = [](int) {}) {
    struct told {
        std::atomic<bool> is_there;
        ncclUniqueId id;
    };
    void* const memory =
        mmap(nullptr, sizeof(told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    told& all = *static_cast<told*>(memory);
    const auto run_rank = [&](int rank) {
        before(rank);
        if (rank == 0) ncclGetUniqueId(&all.id);
        if (rank == 0) all.is_there = true;
        while (!all.is_there) std::this_thread::yield();
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        ncclComm_t comm = nullptr;
        ncclCommInitRankConfig(&comm, size, all.id, rank, &config);
        return f(comm, rank);
    };
    std::vector<pid_t> children;
    for (int first = 0; first < size; first += threads) {
        children.push_back(fork());
        if (children.back() != 0) continue;
        std::atomic<bool> right = true;
        {
            std::vector<std::jthread> ranks;
            for (int rank = first; rank < std::min(size, first + threads); ++rank)
                ranks.emplace_back([&, rank] {
                    if (!run_rank(rank)) right = false;
                });
        }
        if (!right || emulation::live_objects() > 0) std::raise(SIGUSR1);
        _exit(0);
    }
    std::vector<int> signals;
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        signals.push_back(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    munmap(memory, sizeof(told));
    return signals;
}

std::vector<int> no_signals(int size, int threads) {
    return std::vector<int>(std::size_t((size + threads - 1) / threads), 0);
}

// Reduces one float, and returns it.
float sum_of(ncclComm_t comm, float mine) {
    const stream s;
    memory x(1);
    x.set(0, mine);
    ncclAllReduce(x.data, x.data, 1, ncclFloat32, ncclSum, comm, s.handle);
    settle(comm);
    cudaStreamSynchronize(s.handle);
    return x[0];
}

// Ends a call of a communicator of which a rank is gone, and returns true if it was waiting.
bool waits_until_aborted(ncclComm_t comm) {
    const stream s;
    memory x(1);
    cudaEvent_t done{};
    cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    x.set(0, 1);
    ncclAllReduce(x.data, x.data, 1, ncclFloat32, ncclSum, comm, s.handle);
    settle(comm);
    cudaEventRecord(done, s.handle);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const bool waits = cudaEventQuery(done) == cudaErrorNotReady;
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(comm, &state);
    ncclCommAbort(comm);
    cudaStreamSynchronize(s.handle);
    cudaEventDestroy(done);
    return waits && state == ncclSuccess && x[0] == 1;
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

TEST_CASE("a launch runs every block once") {
    const stream s;
    std::array<int, 12> seen{};
    emulation::launch(s.handle, 12, [&](int block) { ++seen[std::size_t(block)]; });
    cudaStreamSynchronize(s.handle);
    for (const int n : seen) CHECK(n == 1);
}

TEST_CASE("a collective reduces what the ranks bring") {
    for (const int size : {1, 2, 3, 4})
        on_ranks(size, [size](ncclComm_t comm, int rank) {
            const stream s;
            memory x(1);
            x.set(0, float(rank));
            const ncclResult_t begun =
                ncclAllReduce(x.data, x.data, 1, ncclFloat32, ncclSum, comm, s.handle);
            CHECK((begun == ncclSuccess || begun == ncclInProgress));
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

TEST_CASE("a derived communicator is there when its parent is ready, and not before") {
    for (const int size : {1, 2, 3, 4})
        on_ranks(size, [size](ncclComm_t comm, int rank) {
            ncclComm_t half = nullptr;
            CHECK(ncclCommSplit(comm, rank % 2, 0, &half, nullptr) == ncclSuccess);
            ncclResult_t state = ncclSuccess;  // the call may have met all others, and polled
            if (half != nullptr) ncclCommGetAsyncError(comm, &state);
            CHECK(state == ncclSuccess);
            CHECK(settle(comm) == ncclSuccess);
            int count = 0;
            CHECK(ncclCommCount(half, &count) == ncclSuccess);
            CHECK(count == (size + 1 - rank % 2) / 2);
            CHECK(emulation::config_of(half).blocking == 0);
            ncclCommDestroy(half);
            ncclCommDestroy(comm);
        });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a communicator that is used before it is ready keeps the error, until it is aborted") {
    on_ranks(2, [](ncclComm_t comm, int rank) {
        const stream s;
        memory x(1);
        if (rank == 0) {  // the other rank does not come
            ncclComm_t half = nullptr;
            CHECK(ncclCommSplit(comm, 0, 0, &half, nullptr) == ncclSuccess);
            int count = 0;
            CHECK(ncclCommCount(comm, &count) == ncclInvalidArgument);
            CHECK(ncclAllReduce(x.data, x.data, 1, ncclFloat32, ncclSum, comm, s.handle) ==
                  ncclInvalidArgument);
            CHECK(settle(comm) == ncclInvalidArgument);
            CHECK(ncclCommDestroy(comm) == ncclInvalidArgument);
            CHECK(half == nullptr);
            ncclCommAbort(comm);
            CHECK(half != nullptr);  // a communicator that failed
            ncclCommAbort(half);
        } else {
            ncclCommAbort(comm);
        }
    });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("invalid arguments stay with a nonblocking communicator, and not with a blocking one") {
    for (const bool blocking : {false, true})
        on_ranks(
            2,
            [blocking](ncclComm_t comm, int) {
                const stream s;
                memory x(1);
                float on_host = 1;
                const auto reduce = [&](float* data, int type, int op) {
                    return ncclAllReduce(data, data, 1, ncclDataType_t(type), ncclRedOp_t(op), comm,
                                         s.handle);
                };
                CHECK(reduce(&on_host, ncclFloat32, ncclSum) == ncclInvalidArgument);
                if (blocking) {
                    CHECK(reduce(nullptr, ncclFloat32, ncclSum) == ncclInvalidArgument);
                    CHECK(reduce(x.data, ncclNumTypes, ncclSum) == ncclInvalidArgument);
                    CHECK(reduce(x.data, ncclFloat32, ncclNumOps) == ncclInvalidArgument);
                    CHECK(ncclBroadcast(x.data, x.data, 1, ncclFloat32, 2, comm, s.handle) ==
                          ncclInvalidArgument);
                }
                const ncclResult_t after = reduce(x.data, ncclFloat32, ncclSum);
                CHECK(after == (blocking ? ncclSuccess : ncclInvalidArgument));
                cudaStreamSynchronize(s.handle);
                ncclCommAbort(comm);
            },
            blocking);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a first collective is in progress until all ranks have made theirs") {
    std::atomic<bool> looked = false;
    on_ranks(2, [&](ncclComm_t comm, int rank) {
        const stream s;
        memory x(1);
        x.set(0, 1);
        while (rank == 1 && !looked) std::this_thread::yield();
        ncclResult_t state = ncclAllReduce(x.data, x.data, 1, ncclFloat32, ncclSum, comm, s.handle);
        for (int i = 0; rank == 0 && i < 10; ++i) {
            ncclCommGetAsyncError(comm, &state);
            CHECK(state == ncclInProgress);
        }
        looked = true;
        CHECK(settle(comm) == ncclSuccess);
        cudaStreamSynchronize(s.handle);
        CHECK(x[0] == 2);
        ncclCommDestroy(comm);
    });
}

TEST_CASE("a revoked communicator is shrunk when the revoke has ended") {
    for (const int size : {2, 3, 4})
        on_ranks(size, [size](ncclComm_t comm, int rank) {
            if (rank == 0) {
                ncclCommAbort(comm);
                return;
            }
            const stream s;
            memory x(1);
            const ncclResult_t revoked = ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT);
            CHECK((revoked == ncclInProgress || revoked == ncclSuccess));
            int excluded[] = {0};
            ncclComm_t rest = nullptr;
            if (revoked == ncclInProgress)
                CHECK(ncclCommShrink(comm, excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT) ==
                      ncclInvalidArgument);
            CHECK(settle(comm) == ncclSuccess);
            CHECK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT) == ncclInvalidArgument);
            CHECK(ncclAllReduce(x.data, x.data, 1, ncclFloat32, ncclSum, comm, s.handle) ==
                  ncclInvalidUsage);
            CHECK(ncclCommShrink(comm, excluded, 0, &rest, nullptr, NCCL_SHRINK_ABORT) ==
                  ncclInvalidArgument);
            CHECK(ncclCommShrink(comm, excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT) ==
                  ncclSuccess);
            CHECK(settle(comm) == ncclSuccess);
            int count = 0;
            CHECK(ncclCommCount(rest, &count) == ncclSuccess);
            CHECK(count == size - 1);
            ncclCommDestroy(rest);
            ncclCommAbort(comm);
        });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("an error that the network's thread has seen outlasts a revoke") {
    std::atomic<bool> made = false, dead = false;
    on_ranks(2, [&](ncclComm_t comm, int rank) {
        if (rank == 0) {
            while (!made) std::this_thread::yield();
            emulation::kill(comm);
            dead = true;
        } else {
            made = true;
            while (!dead) std::this_thread::yield();
            CHECK(settle(comm) == ncclRemoteError);
            ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT);
            CHECK(settle(comm) == ncclRemoteError);
            int excluded[] = {0};
            ncclComm_t rest = nullptr;
            CHECK(ncclCommShrink(comm, excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT) ==
                  ncclRemoteError);
        }
        ncclCommAbort(comm);
    });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a window is there when all ranks have come, and needs memory of NCCL's own") {
    for (const int size : {1, 2, 3, 4})
        on_ranks(size, [](ncclComm_t comm, int rank) {
            void *own = nullptr, *other = nullptr;
            ncclMemAlloc(&own, 8192);
            cudaMalloc(&other, 8192);
            ncclWindow_t window = nullptr;
            CHECK(ncclCommWindowRegister(comm, own, 4096, &window, NCCL_WIN_COLL_SYMMETRIC) ==
                  ncclSuccess);
            CHECK(settle(comm) == ncclSuccess);
            CHECK(window != nullptr);
            CHECK(ncclCommWindowDeregister(comm, window) == ncclSuccess);
            CHECK(ncclCommWindowDeregister(comm, window) == ncclInvalidArgument);
            void* const wrong = rank == 0 ? other : static_cast<std::byte*>(own) + 8;
            CHECK(ncclCommWindowRegister(comm, wrong, 8, &window, 0) == ncclSuccess);
            const ncclResult_t why = rank == 0 ? ncclUnhandledCudaError : ncclInvalidArgument;
            CHECK(settle(comm) == why);
            CHECK(window == nullptr);
            CHECK(ncclCommFinalize(comm) == why);
            ncclCommAbort(comm);
            ncclMemFree(own);
            cudaFree(other);
        });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a group fails at its end as one of its calls did, and has room for 2048 operations") {
    on_ranks(2, [](ncclComm_t comm, int) {
        const stream s;
        memory x(2);
        const auto in_one_group = [&](int calls) {
            ncclGroupStart();
            for (int i = 0; i < calls; ++i)
                CHECK(ncclAllReduce(x.data, x.data, 1, ncclFloat32, ncclSum, comm, s.handle) ==
                      ncclSuccess);
            return ncclGroupEnd();
        };
        CHECK(in_one_group(0) == ncclSuccess);
        CHECK(in_one_group(2048) == ncclInProgress);
        CHECK(settle(comm) == ncclSuccess);
        CHECK(in_one_group(2049) == ncclInvalidUsage);
        CHECK(settle(comm) == ncclInvalidUsage);
        cudaStreamSynchronize(s.handle);
        ncclCommAbort(comm);
    });
    on_ranks(2, [](ncclComm_t comm, int) {
        const stream s;
        memory x(1);
        ncclGroupStart();
        CHECK(ncclSend(x.data, 1, ncclFloat32, 2, comm, s.handle) == ncclInvalidArgument);
        CHECK(ncclGroupEnd() == ncclInvalidArgument);
        CHECK(ncclGroupEnd() == ncclInvalidUsage);
        ncclCommAbort(comm);
    });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a scaled sum is of one type, for one communicator, and may be destroyed once taken") {
    on_ranks(2, [](ncclComm_t comm, int) {
        const stream s;
        memory x(1);
        x.set(0, 1);
        float half = 0.5;
        ncclRedOp_t op{};
        CHECK(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat32, ncclScalarHostImmediate, comm) ==
              ncclSuccess);
        ncclAllReduce(x.data, x.data, 1, ncclFloat32, op, comm, s.handle);
        CHECK(ncclRedOpDestroy(op, comm) == ncclSuccess);
        CHECK(ncclRedOpDestroy(op, comm) == ncclInvalidArgument);
        CHECK(settle(comm) == ncclSuccess);
        cudaStreamSynchronize(s.handle);
        CHECK(x[0] == 1);
        CHECK(ncclAllReduce(x.data, x.data, 1, ncclFloat32, op, comm, s.handle) ==
              ncclInvalidArgument);
        ncclCommAbort(comm);
    });
    CHECK(emulation::live_objects() == 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a stream that is used when it was destroyed ends the program") {
    CHECK(signal_of_child([] {
              cudaStream_t gone{};
              cudaStreamCreate(&gone);
              cudaStreamDestroy(gone);
              const stream another;
              cudaStreamSynchronize(gone);
          }) == SIGABRT);
}

TEST_CASE("a result that NCCL writes into a frame that is gone ends the program") {
    CHECK(signal_of_child([] {
              on_ranks(1, [](ncclComm_t comm, int) {
                  const auto split = [comm]() __attribute__((noinline)) {
                      struct {
                          ncclComm_t part;
                          std::byte deep[1 << 16];  // below the frames of later polls
                      } frame{};
                      ncclCommSplit(comm, 0, 0, &frame.part, nullptr);
                  };
                  // The split has ended at once in one of four cases.
                  for (int i = 0; i < 50; ++i) {
                      split();
                      settle(comm);
                  }
              });
          }) == SIGABRT);
}
#endif

TEST_CASE("ranks are threads, processes, or several threads of several processes") {
    for (const int size : {2, 3, 4})
        for (const int threads : {1, 2, size})
            CHECK(on_processes(size, threads, [size](ncclComm_t comm, int rank) {
                      settle(comm);
                      bool right = sum_of(comm, float(rank)) == float(size * (size - 1) / 2);
                      ncclComm_t half = nullptr;
                      ncclCommSplit(comm, rank % 2, -rank, &half, nullptr);
                      settle(comm);
                      int of_half = 0, place = -1;
                      ncclCommCount(half, &of_half);
                      ncclCommUserRank(half, &place);
                      right &=
                          of_half == (size + 1 - rank % 2) / 2 && place == (size - 1 - rank) / 2;
                      right &= sum_of(half, 1) == float(of_half);
                      ncclCommDestroy(half);
                      void* own = nullptr;
                      ncclMemAlloc(&own, 8192);
                      ncclWindow_t window = nullptr;
                      ncclCommWindowRegister(comm, own, 4096, &window, NCCL_WIN_COLL_SYMMETRIC);
                      right &= settle(comm) == ncclSuccess && window != nullptr;
                      ncclCommWindowDeregister(comm, window);
                      ncclMemFree(own);
                      ncclCommDestroy(comm);
                      return right;
                  }) == no_signals(size, threads));
}

TEST_CASE("messages between processes come in their order, however many wait") {
    for (const int size : {1, 2, 3})
        CHECK(on_processes(size, 1, [size](ncclComm_t comm, int rank) {
                  settle(comm);
                  const stream s;
                  const std::size_t count = 300'000;
                  const int to = (rank + 1) % size, from = (rank + size - 1) % size;
                  memory out(count), in(count), one(1);
                  bool right = true;
                  const auto exchange = [&](bool sends, bool receives, int calls) {
                      ncclGroupStart();
                      for (int i = 0; i < calls; ++i) {
                          if (sends) ncclSend(out.data, count, ncclFloat32, to, comm, s.handle);
                          if (receives) ncclRecv(in.data, count, ncclFloat32, from, comm, s.handle);
                      }
                      if (sends) ncclSend(out.data, 1, ncclFloat32, to, comm, s.handle);
                      if (receives) ncclRecv(one.data, 1, ncclFloat32, from, comm, s.handle);
                      ncclGroupEnd();
                      settle(comm);
                      cudaStreamSynchronize(s.handle);
                  };
                  for (int i = 0; i < 10; ++i) {
                      out.set(0, float(100 * rank - i));
                      out.set(count - 1, float(100 * rank + i));
                      if (i % 2 == 0) exchange(true, true, 1);
                      else exchange(true, false, 20), exchange(false, true, 20);
                      right &= in[count - 1] == float(100 * from + i);
                      right &= one[0] == float(100 * from - i);
                  }
                  ncclCommDestroy(comm);
                  return right && emulation::disagreements().empty();
              }) == no_signals(size, 1));
}

TEST_CASE("processes that call different things are told apart, each by itself") {
    CHECK(on_processes(2, 1, [](ncclComm_t comm, int rank) {
              settle(comm);
              const stream s;
              memory x(2);
              ncclAllReduce(x.data, x.data, std::size_t(1 + rank), ncclFloat32, ncclSum, comm,
                            s.handle);
              settle(comm);
              cudaStreamSynchronize(s.handle);
              ncclCommDestroy(comm);
              const auto said = emulation::disagreements();
              return said.size() == 1 &&
                     said[0].find("rank 1 has ncclAllReduce count 2") != std::string::npos;
          }) == no_signals(2, 1));
}

TEST_CASE("a process that aborts in a call gives the others garbage, and no error") {
    for (const int size : {2, 3, 4})
        CHECK(on_processes(size, 1, [](ncclComm_t comm, int rank) {
                  settle(comm);
                  sum_of(comm, 1);
                  if (rank != 0) {  // it comes when rank 0 has given up
                      std::this_thread::sleep_for(std::chrono::milliseconds(50));
                      const float x = sum_of(comm, 1);
                      ncclCommAbort(comm);
                      return x != 1 && x > 1e6f;
                  }
                  return waits_until_aborted(comm);
              }) == no_signals(size, 1));
}

TEST_CASE("a process that is killed leaves the others waiting until they abort") {
    for (const int size : {2, 3, 4})
        for (const char* const function : {"ncclAllReduce", "ncclDevKernel"}) {
            std::vector<int> expected(std::size_t(size), 0);
            expected.back() = SIGKILL;
            CHECK(on_processes(size, 1, [=](ncclComm_t comm, int rank) {
                      settle(comm);
                      sum_of(comm, 1);
                      if (rank + 1 == size) emulation::kill_process(function, 1);
                      return waits_until_aborted(comm);
                  }) == expected);
        }
}

TEST_CASE("a process that is killed while it makes a communicator leaves the others in progress") {
    for (const int lost : {0, 1})
        for (const char* const function : {"ncclCommInitRankConfig", "ncclCommSplit"}) {
            std::vector<int> expected(2, 0);
            expected[std::size_t(lost)] = SIGKILL;
            const auto make = [function](ncclComm_t comm, int) {
                ncclComm_t part = nullptr;
                if (std::string(function) == "ncclCommSplit") {
                    settle(comm);
                    ncclCommSplit(comm, 0, 0, &part, nullptr);
                }
                const bool waits = is_in_progress(comm);
                ncclCommAbort(comm);
                ncclCommAbort(part);
                return waits;
            };
            CHECK(on_processes(2, 1, make, [=](int rank) {
                      if (rank == lost) emulation::kill_process(function, 1);
                  }) == expected);
        }
}

TEST_CASE("an input that is written while its call waits for other ranks is told") {
    on_ranks(2, [](ncclComm_t comm, int rank) {
        const stream s;
        memory x(1), y(1);
        sum_of(comm, 1);
        x.set(0, 1);
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ncclAllReduce(x.data, y.data, 1, ncclFloat32, ncclSum, comm, s.handle);
        settle(comm);
        if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        if (rank == 0) x.set(0, 2);
        cudaStreamSynchronize(s.handle);
        ncclCommDestroy(comm);
    });
    REQUIRE(emulation::disagreements().size() == 1);
    CHECK(emulation::disagreements()[0].find("the input of rank 0 was written") !=
          std::string::npos);
    emulation::reset();
}

TEST_CASE(
    "calls make the context of their thread's device, and questions about devices make none") {
    using device_test::has_context;
    emulation::reset();
    const auto contexts = [] {
        std::string all;
        for (int device = 0; device < 4; ++device) all += has_context(device) ? '1' : '0';
        return all;
    };
    cudaEvent_t event = nullptr;
    std::thread([&] {
        int number = 0;
        cudaDeviceProp properties{};
        cudaGetDeviceCount(&number);
        cudaGetDevice(&number);
        cudaGetDeviceProperties(&properties, 1);
        cudaDeviceGetAttribute(&number, cudaDevAttrPageableMemoryAccess, 1);
        CHECK(contexts() == "0000");
        cudaSetDevice(2);
        CHECK(contexts() == "0010");
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }).join();
    CHECK(contexts() == "0010");
    std::thread([&] { cudaEventQuery(event); }).join();
    CHECK(contexts() == "1010");
    CHECK_THROWS(has_context(4));
    CHECK(device_test::driver_function("cuCtxCreate") == nullptr);
    cudaEventDestroy(event);
    emulation::reset();
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

}  // namespace emulation_tests
