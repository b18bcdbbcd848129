// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// CUDA IPC when something is wrong: calls that differ or can't be made, ranks that are late or
// gone, CUDA calls that fail.

#include <atomic>
#include <thread>

#include "failures.hpp"

namespace ipc_faults_tests {

using namespace device_test;

namespace {

using gpu_communicator = hvd::communicator<hvd::cuda_ipc>;

void work(world_type& world, const hvd::communicator_options& options) {
    const tensor<float> x(std::vector<float>(100, 1)), all(std::vector<float>(300));
    gpu_communicator gpus(world, options);
    gpus.allreduce(x.view(), hvd::average);
    gpus.allgather(x.view(), hvd::into(all.view()));
    gpus.barrier();
}

template <class F>
void on_three(F f, const hvd::communicator_options& options = patient) {
    hvd::run_threads(3, [&](world_type& world) {
        gpu_communicator gpus(world, options);
        f(gpus);
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

void check_works(gpu_communicator& gpus) {
    const tensor<float> x{1, 2};
    gpus.allreduce(x.view(), hvd::sum);
    CHECK(x.values()[1] == float(2 * gpus.size()));
}

bool has(const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every call of CUDA's that a communicator and its collectives make, failing") {
    fail_each({"cudaStreamCreateWithFlags", "cudaGetDeviceProperties", "cudaDeviceGetAttribute",
               "cudaEventCreateWithFlags", "cudaEventRecord", "cudaStreamWaitEvent",
               "cudaEventQuery", "cudaMemcpyAsync", "launch_reduction"},
              work, false, patient);
}

TEST_CASE("every single call of an allreduce, failing") {
    fail_each(
        {"cudaEventRecord", "cudaStreamWaitEvent", "cudaMemcpyAsync", "launch_reduction"},
        [](world_type& world, const hvd::communicator_options& options) {
            const tensor<float> x(std::vector<float>(3000, 1));
            hvd::communicator_options small = options;
            small.device_window_bytes = 4096;
            gpu_communicator gpus(world, small);
            gpus.allreduce(x.view(), hvd::sum);
        },
        true, patient);
}

TEST_CASE("ranks that disagree are told so, by name, and the communicator works on") {
    on_three([](auto& gpus) {
        const bool odd = gpus.rank() == 1;
        const tensor<float> two{1, 2}, three{1, 2, 3}, nine(std::vector<float>(9));
        const tensor<int> integers{1, 2};
        has(text_of<hvd::mismatch_error>(
                [&] { gpus.allreduce(odd ? three.view() : two.view(), hvd::sum); }),
            "ranks disagree on count: rank 0: 2, rank 1: 3, rank 2: 2");
        CHECK_THROWS_AS(gpus.broadcast(two.view(), hvd::root{odd ? 1 : 0}), hvd::mismatch_error);
        CHECK_THROWS_AS(odd ? gpus.barrier() : gpus.broadcast(two.view()), hvd::mismatch_error);
        CHECK_THROWS_AS(
            odd ? gpus.allreduce(two.view(), hvd::sum) : gpus.allreduce(two.view(), hvd::max),
            hvd::mismatch_error);
        CHECK_THROWS_AS(
            odd ? gpus.allreduce(integers.view(), hvd::sum) : gpus.allreduce(two.view(), hvd::sum),
            hvd::mismatch_error);
        CHECK_THROWS_AS(gpus.allreduce(two.view(), hvd::sum, {.prescale = odd ? 2.0 : 1.0}),
                        hvd::mismatch_error);
        CHECK_THROWS_AS(odd ? gpus.allreduce(hvd::fuse(two.view(), three.view()), hvd::sum)
                            : gpus.allreduce(two.view(), hvd::sum),
                        hvd::mismatch_error);
        CHECK_THROWS_AS(gpus.allgather(odd ? three.view() : two.view(),
                                       hvd::into(hvd::device_view(nine.data(), odd ? 9 : 6))),
                        hvd::mismatch_error);
        check_works(gpus);
    });
}

TEST_CASE(
    "a call where the others make a plan is told by its name, and the communicator works on") {
    on_three([](auto& gpus) {
        const tensor<float> x{1, 2};
        const std::string said = text_of<hvd::mismatch_error>([&] {
            if (gpus.rank() == 1) gpus.allreduce(x.view(), hvd::sum);
            else (void)gpus.plan_allreduce(x.view(), hvd::sum);
        });
        has(said, "rank 1: allreduce");
        has(said, "rank 2: making of a plan: fused allreduce");
        check_works(gpus);
    });
}

TEST_CASE("a count that one rank sends and the other does not expect is told to all") {
    on_three([](auto& gpus) {
        const std::vector<std::size_t> ones{1, 1, 1}, wrong{1, 2, 1};
        const tensor<int> x{1, 2, 3}, y{0, 0, 0, 0};
        const auto& send = gpus.rank() == 2 ? wrong : ones;
        const auto from =
            hvd::device_view(gpus.rank() == 2 ? y.data() : x.data(), gpus.rank() == 2 ? 4 : 3);
        const tensor<int> out{0, 0, 0};
        has(text_of<hvd::mismatch_error>([&] {
                gpus.alltoall(from, hvd::into(out.view()),
                              {.counts = send, .receive_counts = ones});
            }),
            "rank 2: sends 2 to rank 1, rank 1: expects 1 from rank 2");
        check_works(gpus);
    });
}

TEST_CASE("a refusal of one rank is told to the others, and the communicator works on") {
    on_three([](auto& gpus) {
        const tensor<int> x{1, 2};
        if (gpus.rank() == 1)
            has(text_of<hvd::usage_error>(
                    [&] { gpus.allreduce(x.view(), hvd::sum, {.postscale = 0.5}); }),
                "sum of int32 can't be scaled by 1 and 0.5");
        else
            has(text_of<hvd::peer_error>([&] { gpus.allreduce(x.view(), hvd::sum); }),
                "rank 1 refused it");
        CHECK_THROWS_AS((void)gpus.plan_allreduce(x.view(), hvd::sum, {.prescale = 2}),
                        hvd::usage_error);
        check_works(gpus);
    });
}

TEST_CASE("streams wait for each other after a call that one rank did not make") {
    std::atomic<int> told = 0, looked = 0;
    const auto all_have = [](std::atomic<int>& done) {
        ++done;
        while (done < 3) std::this_thread::sleep_for(1ms);
    };
    on_three([&](auto& gpus) {
        const std::size_t count = 1000;
        hvd::device_arena arena(gpus, 8192);
        const auto x = arena.tensor<int>(hvd::shape(count));
        cudaMemcpy(x.data(), std::vector<int>(count).data(), 4 * count, cudaMemcpyHostToDevice);
        cudaStreamSynchronize(nullptr);  // the stream does not wait for the copies
        const bool odd = gpus.rank() == 1;
        if (odd) CHECK_THROWS_AS(gpus.broadcast(x, hvd::root{7}), hvd::usage_error);
        else CHECK_THROWS_AS(gpus.broadcast(x), hvd::peer_error);
        all_have(told);
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        std::atomic<bool> held = odd;
        emulation::enqueue(stream, [&held] {
            while (held) std::this_thread::sleep_for(1ms);
        });
        cudaMemsetAsync(x.data(), odd ? 2 : 1, 4 * count, stream);
        auto pending = gpus.allreduce_async(x, hvd::max, {.stream = stream});
        // Nobody has the result before the stream of the one rank goes on.
        for (int i = 0; i < 150 && !odd; ++i) {
            CHECK(!pending.test());
            std::this_thread::sleep_for(1ms);
        }
        all_have(looked);
        held = false;
        pending.wait();
        cudaStreamDestroy(stream);
        std::vector<int> got(count);
        cudaMemcpy(got.data(), x.data(), 4 * count, cudaMemcpyDeviceToHost);
        CHECK(got == std::vector<int>(count, 0x02020202));
    });
}

TEST_CASE("ranks on several nodes are refused, each with those of its node") {
    hvd::run_threads(4,
                     [](world_type& world) {
                         const std::string said =
                             text_of<hvd::usage_error>([&] { gpu_communicator gpus(world); });
                         has(said, world.rank() < 2 ? "those of this one are 0, 1"
                                                    : "those of this one are 2, 3");
                         auto node = world.local();
                         gpu_communicator gpus(node);
                         check_works(gpus);
                     },
                     {.node_size = 2});
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("windows of different sizes are refused on all ranks, which work on") {
    hvd::run_threads(3, [](world_type& world) {
        hvd::communicator_options options = patient;
        options.device_window_bytes = world.rank() == 1 ? 8192 : 4096;
        const std::string said =
            text_of<hvd::mismatch_error>([&] { gpu_communicator gpus(world, options); });
        has(said, "on rank " + std::to_string(world.rank()));
        has(said, ".device_window_bytes in whole units:");
        has(said, "\n  rank 0: 4096\n  rank 1: 8192\n  rank 2: 4096");
        gpu_communicator gpus(world, patient);
        check_works(gpus);
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("GPUs that can't access each other are refused") {
    emulation::answer("cudaDeviceCanAccessPeer", 0);
    hvd::run_threads(2, [](world_type& world) {
        hvd::pin_device(world);
        has(text_of<hvd::usage_error>([&] { gpu_communicator gpus(world); }),
            world.rank() == 0 ? "the GPU of rank 0 can't access that of rank 1, "
                                "GPU-a1000000-0000-0000-0000-000000000000; use"
                              : "of rank 1 can't access that of rank 0");
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("more ranks than a launch takes are refused") {
    hvd::run_threads(65, [](world_type& world) {
        has(text_of<hvd::usage_error>([&] { gpu_communicator gpus(world); }),
            "65 ranks, it takes up to 64");
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("memory is not freed while a stream works, but kept when the destructor's time is over") {
    std::atomic<bool> held = true;
    std::atomic<int> left = 0;
    hvd::run_threads(3, [&](world_type& world) {
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        emulation::enqueue(stream, [&, rank = world.rank()] {
            // The time is over by then if the memory is freed all the same, which waits for this.
            for (int i = 0; i < 2000 && held && rank == 0; ++i) std::this_thread::sleep_for(10ms);
        });
        {
            const tensor<float> x(std::vector<float>(3000, 1));
            cudaStreamSynchronize(nullptr);  // the stream does not wait for the copies
            {
                gpu_communicator gpus(world, {.destructor_deadline = 200ms * slowness});
                hvd::device_arena arena(gpus, 4096);
                gpus.allreduce_async(x.view(), hvd::sum, {.stream = stream}).wait(stream);
            }
            CHECK(held);
            ++left;
            while (world.rank() == 0 && left < 3) std::this_thread::sleep_for(1ms);
            if (world.rank() == 0) held = false;
            cudaStreamSynchronize(stream);
            CHECK(x.values() == std::vector<float>(3000, 3));
        }
        cudaStreamDestroy(stream);
    });
    const int kept = int(emulation::live_objects());
    CHECK(kept == 3 * (2 + 2));  // windows, arenas and two events of each rank
    emulation::count_object(-kept);
    emulation::reset();
}

TEST_CASE("a rank that does not come is waited for until the deadline, and then not again") {
    const outcome seen = with_failures("", [](world_type& world) {
        const tensor<float> x{1};
        gpu_communicator gpus(world, {.deadline = impatient.deadline, .destructor_deadline = 20s});
        if (world.rank() == 0) {
            while (true) {
                std::this_thread::sleep_for(10ms);
                gpus.allreduce(x.view(), hvd::sum);
            }
        }
        if (world.rank() == 1) std::this_thread::sleep_for(1500ms * slowness);
        else CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum), hvd::peer_error);
        gpus.allreduce(x.view(), hvd::sum);
    });
    CHECK(seen.told == 3);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a rank that leaves before, between and after calls") {
    for (const int at : {0, 1, 2}) {
        INFO("after ", at, " runs");
        const outcome seen = with_failures("", [at](world_type& world) {
            const tensor<float> x{1}, y{1, 2};
            gpu_communicator gpus(world, patient);
            auto plan = gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::sum);
            for (int run = 0; run < 3; ++run) {
                if (run == at && world.rank() == 2)
                    throw hvd::peer_error(2, "this rank leaves", {});
                plan.run();
            }
        });
        CHECK(seen.told == 3);
        CHECK(emulation::live_objects() == 0);
    }
    emulation::reset();
}

TEST_CASE("a communicator that one rank ends is ended for all") {
    on_three([](auto& gpus) {
        const tensor<float> x{1};
        gpus.allreduce(x.view(), hvd::sum);
        if (gpus.rank() == 0) gpus.abort();
        CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum), hvd::peer_error);
        CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);
    });
}

TEST_CASE("a call that the stream of one rank holds up ends by the deadline of the others") {
    const outcome seen = with_failures("", [](world_type& world) {
        const tensor<float> x{1};
        cudaStreamSynchronize(nullptr);  // the stream does not wait for the copies
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        std::atomic<bool> held = world.rank() == 0;
        emulation::enqueue(stream, [&held] {
            while (held) std::this_thread::yield();
        });
        {
            gpu_communicator gpus(world);
            CHECK_THROWS_AS(
                gpus.allreduce(x.view(), hvd::sum, {.deadline = 100ms, .stream = stream}),
                hvd::peer_error);
            world.barrier();
            held = false;
        }
        cudaStreamDestroy(stream);
    });
    CHECK(seen.done == 3);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("an arena for which one rank has no memory") {
    on_three([](auto& gpus) {
        gpus.barrier();
        if (gpus.rank() == 1) emulation::fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
        gpus.barrier();
        const auto make = [&] { hvd::device_arena arena(gpus, 4096); };
        // The failing call may be any rank's.
        std::string said;
        try {
            make();
        } catch (const hvd::error& e) {
            said = e.what();
        }
        has(said, "device_arena");
        has(said, "cudaMalloc");
        CHECK_THROWS_AS(hvd::device_arena(gpus, 128 + 128 * std::size_t(gpus.rank())),
                        hvd::mismatch_error);
        check_works(gpus);
    });
}

TEST_CASE("an arena that outlives its communicator, and one that ends after it was given up") {
    on_three([](auto& gpus) {
        auto half = gpus.split(0);
        hvd::device_arena arena(half, 4096);
        const auto x = arena.tensor<int>(hvd::shape(5));
        half.broadcast(x);
        half = {};
        hvd::device_arena kept(gpus, 4096);
        if (gpus.rank() == 2) gpus.abort();
        CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);
    });
}

TEST_CASE("a call is not captured into a graph") {
    on_three([](auto& gpus) {
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        const tensor<float> a{1};
        auto plan = gpus.plan_allreduce(a.view(), hvd::sum);
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        has(text_of<hvd::usage_error>([&] { plan.run(stream); }), "needs the host at each run");
        CHECK_THROWS_AS(gpus.allreduce(a.view(), hvd::sum, {.stream = stream}), hvd::usage_error);
        cudaGraph_t graph{};
        cudaStreamEndCapture(stream, &graph);
        cudaGraphDestroy(graph);
        cudaStreamDestroy(stream);
    });
}

}  // namespace ipc_faults_tests
