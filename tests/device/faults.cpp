// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// What goes wrong on a GPU, in NCCL or on another rank: nobody hangs, everybody is told, nothing leaks.

#include <atomic>
#include <set>
#include <string>
#include <thread>

#include "support.hpp"

using namespace device_test;

namespace {

using world_type = hvd::communicator<hvd::threads>;
using hvd::nccl;

struct outcome {
    int failed = 0, told = 0, done = 0;
};

void count(int& what) { __atomic_fetch_add(&what, 1, __ATOMIC_RELAXED); }

// Runs `f` on three ranks, each of which may fail in the call that is named, be told by peer_error, or end well.
template <class F>
outcome with_failures(const std::string& function, F f) {
    outcome seen;
    const auto begun = std::chrono::steady_clock::now();
    hvd::run_threads(3, [&](world_type& world) {
        try {
            f(world);
            count(seen.done);
        } catch (const hvd::device_error& e) {
            CHECK_MESSAGE(std::string(e.what()).find(function == "launch_tiles" ? "hvd's pack kernel" : function) != std::string::npos, e.what());
            CHECK(e.rank() == world.rank());
            count(seen.failed);
        } catch (const hvd::peer_error& e) {
            CHECK_MESSAGE(std::string(e.what()).find("rank") != std::string::npos, e.what());
            count(seen.told);
        }
    });
    // A machine that is busy may take long, but not as long as a hang.
    CHECK(std::chrono::steady_clock::now() - begun < 60s);
    return seen;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int slowness = 5;
#else
constexpr int slowness = 1;
#endif

// Where nothing fails, a busy machine is waited for.
constexpr hvd::communicator_options patient{.deadline = std::chrono::seconds(10)};
constexpr hvd::communicator_options impatient{.deadline = std::chrono::milliseconds(400 * slowness),
                                              .destructor_deadline = std::chrono::milliseconds(200 * slowness)};

void work_with_nccl(world_type& world, const hvd::communicator_options& options) {
    const tensor<float> x(std::vector<float>(100, 1)), y(std::vector<float>(10, 1)), all(std::vector<float>(30));
    hvd::communicator<nccl> gpus(world, options);
    auto plan = gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::average);
    plan.run();
    gpus.allreduce(x.view(), hvd::average);
    gpus.allgather(y.view(), hvd::into(all.view()));
    gpus.barrier();
}

void work_staged(world_type& world, const hvd::communicator_options& options) {
    const tensor<float> x(std::vector<float>(100, 1)), all(std::vector<float>(300));
    hvd::communicator<hvd::staged<hvd::threads>> gpus(world, options);
    gpus.allreduce(x.view(), hvd::average);
    gpus.allgather(x.view(), hvd::into(all.view()));
    gpus.barrier();
}

// The first call of each function, one between, and the last one that the work makes.
template <class F>
void fail_each(std::initializer_list<const char*> functions, F work) {
    emulation::reset();
    hvd::run_threads(3, [&](world_type& world) { work(world, patient); });
    std::vector<int> calls;
    for (const char* function : functions) calls.push_back(emulation::calls_of(function));
    CHECK(emulation::live_objects() == 0);
    const int* last = calls.data();
    for (const char* function : functions) {
        const int n = *last++;
        INFO(function, ", called ", n, " times");
        REQUIRE(n > 0);
        for (const int k : std::set<int>{1, (n + 1) / 2, n}) {
            INFO("call ", k);
            emulation::reset();
            emulation::fail(function, k, 3);  // an internal error of NCCL; not initialised, of CUDA
            const outcome seen = with_failures(function, [&](world_type& world) { work(world, impatient); });
            CHECK(seen.failed <= 1);
            CHECK(seen.failed + seen.told + seen.done == 3);
            // How often it is polled for is up to chance: the last look may not be made.
            const bool polled = std::string(function) == "cudaEventQuery" || std::string(function) == "ncclCommGetAsyncError";
            if (k == 1 || !polled) CHECK(seen.failed == 1);
            CHECK(emulation::live_objects() == 0);
        }
    }
    emulation::reset();
}

}  // namespace

TEST_CASE("every call of NCCL's and CUDA's that hvd makes, failing") {
    fail_each({"ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclGroupStart", "ncclGroupEnd", "ncclAllReduce", "ncclAllGather",
               "ncclRedOpCreatePreMulSum", "ncclCommGetAsyncError", "cudaStreamCreateWithFlags", "cudaMemsetAsync", "cudaEventCreateWithFlags",
               "cudaEventRecord", "cudaEventQuery", "launch_tiles"}, work_with_nccl);
}

TEST_CASE("every call of CUDA's that staging makes, failing") {
    fail_each({"cudaHostAlloc", "cudaStreamCreateWithFlags", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaStreamWaitEvent",
               "cudaEventQuery", "cudaMemcpyAsync"}, work_staged);
}

TEST_CASE("a rank that never makes a communicator") {
    const outcome seen = with_failures("", [](world_type& world) {
        if (world.rank() == 1) throw hvd::peer_error(1, "this rank leaves", {});
        hvd::communicator<nccl> gpus(world, impatient);
    });
    CHECK(seen.told == 3);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a rank that dies before, between and after the calls of a plan") {
    for (const int at : {0, 1, 2}) {
        INFO("after ", at, " runs");
        emulation::reset();
        const outcome seen = with_failures("", [at](world_type& world) {
            const tensor<float> x{1}, y{1, 2};
            hvd::communicator<nccl> gpus(world, impatient);
            auto plan = gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::sum);
            for (int run = 0; run < 3; ++run) {
                if (run == at && world.rank() == 2) {
                    emulation::kill(gpus.native_handle());
                    gpus.abort();
                }
                plan.run();
            }
        });
        CHECK(seen.told == 3);
        CHECK(emulation::live_objects() == 0);
    }
    emulation::reset();
}

TEST_CASE("a rank that is late for a staged call") {
    const outcome seen = with_failures("", [](world_type& world) {
        const tensor<float> x{1};
        hvd::communicator<hvd::staged<hvd::threads>> gpus(world);
        if (world.rank() == 0) return;
        gpus.allreduce(x.view(), hvd::sum, {.deadline = 100ms});
    });
    CHECK(seen.told == 2);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a staged call that its own stream holds up") {
    const outcome seen = with_failures("", [](world_type& world) {
        const tensor<float> x{1};
        hvd::communicator<hvd::staged<hvd::threads>> gpus(world);
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        std::atomic<bool> held = true;
        emulation::enqueue(stream, [&held] {
            while (held) std::this_thread::yield();
        });
        CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum, {.deadline = 50ms, .stream = stream}), hvd::peer_error);
        held = false;
        cudaStreamDestroy(stream);
    });
    CHECK(seen.done == 3);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("each rank of a node gets a GPU of its own, or all are told why not") {
    hvd::run_threads(4, [](world_type& world) { CHECK(hvd::pin_device(world) == world.rank()); });
    hvd::run_threads(4, [](world_type& world) { CHECK(hvd::pin_device(world) == world.rank() % 2); }, {.node_size = 2});
    const outcome five = [] {
        outcome seen;
        hvd::run_threads(5, [&](world_type& world) {
            try {
                hvd::pin_device(world);
            } catch (const hvd::usage_error& e) {  // the emulation has four
                CHECK(std::string(e.what()).find("would share the GPU 0000:00:00.0: start as many ranks") != std::string::npos);
                count(seen.failed);
            } catch (const hvd::peer_error&) {
                count(seen.told);
            }
        });
        return seen;
    }();
    CHECK(five.failed == 2);
    CHECK(five.told == 3);
    hvd::run_threads(5, [](world_type& world) { CHECK(hvd::pin_device(world, {.share = true}) == world.rank() % 4); });
    emulation::reset();
    emulation::fail("cudaGetDeviceCount", 1, cudaErrorNoDevice);
    hvd::run_threads(1, [](world_type& world) {
        try {
            hvd::pin_device(world);
            FAIL("there was a device");
        } catch (const hvd::cuda_error& e) {
            CHECK(std::string(e.what()).find("no usable GPU or driver was found") != std::string::npos);
        }
    });
    emulation::reset();
}
