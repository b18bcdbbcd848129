// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Failures of a GPU, of NCCL or of another rank: nobody hangs, everybody is told, nothing leaks.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "failures.hpp"

namespace faults_tests {

using namespace device_test;

namespace {

using hvd::nccl;

void work_with_nccl(world_type& world, const hvd::communicator_options& options) {
    const tensor<float> x(std::vector<float>(100, 1)), y(std::vector<float>(10, 1)),
        all(std::vector<float>(30));
    hvd::communicator<nccl> gpus(world, options);
    auto plan = gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::average);
    plan.run();
    gpus.allreduce(x.view(), hvd::average);
    const tensor<hvd::float16> h{hvd::float16(1)};  // it is scaled down before the sum
    gpus.allreduce(h.view(), hvd::average);
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

}  // namespace

TEST_CASE("every call of NCCL's and CUDA's that hvd makes, failing") {
    fail_each({"ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclGroupStart",
               "ncclGroupEnd", "ncclAllReduce", "ncclAllGather", "ncclRedOpCreatePreMulSum",
               "ncclCommWindowRegister", "ncclCommGetAsyncError", "cudaStreamCreateWithFlags",
               "cudaMemsetAsync", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventQuery",
               "launch_tiles"},
              work_with_nccl);
}

TEST_CASE("every call of CUDA's that staging makes, failing") {
    fail_each({"cudaHostAlloc", "cudaStreamCreateWithFlags", "cudaEventCreateWithFlags",
               "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventQuery", "cudaMemcpyAsync"},
              work_staged);
}

TEST_CASE("a rank that never makes a communicator") {
    const outcome seen = with_failures("", [](world_type& world) {
        if (world.rank() == 1) throw hvd::peer_error(1, "this rank leaves", {});
        hvd::communicator<nccl> gpus(world, impatient);
    });
    CHECK(seen.told == 3);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE_TEMPLATE("a communicator is waited for until its own timeout", Backend, nccl,
                   hvd::staged<hvd::threads>, hvd::hierarchical<nccl, hvd::threads>) {
    std::atomic<int> told = 0;
    hvd::run_threads(3, [&](world_type& world) {
        if (world.rank() == 1) {  // it stays and never makes the call
            const auto until = std::chrono::steady_clock::now() + 30s;
            while (told < 2 && std::chrono::steady_clock::now() < until)
                std::this_thread::sleep_for(1ms);
            return;
        }
        try {
            hvd::communicator<Backend> gpus(world, {.timeout = 100ms});
        } catch (const hvd::peer_error& e) {
            CHECK_MESSAGE(std::string(e.what()).find("in time") != std::string::npos, e.what());
            ++told;
        }
    });
    CHECK(told == 2);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE_TEMPLATE("where one rank can't make a communicator, all are told which and why", Backend,
                   nccl, hvd::staged<hvd::threads>) {
    emulation::reset();
    emulation::fail("cudaStreamCreateWithFlags", 1, cudaErrorMemoryAllocation);
    std::atomic<int> failed = 0, told = 0;
    hvd::run_threads(3, [&](world_type& world) {
        try {
            hvd::communicator<Backend> gpus(world);
            FAIL("it was made");
        } catch (const hvd::cuda_error&) {
            ++failed;
        } catch (const hvd::peer_error& e) {
            CHECK_MESSAGE(std::string(e.what()).find(
                              "refused it: hvd: cudaStreamCreateWithFlags") != std::string::npos,
                          e.what());
            CHECK(e.peers().size() == 1);
            ++told;
        }
        world.barrier();
    });
    CHECK(failed == 1);
    CHECK(told == 2);
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
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
        gpus.allreduce(x.view(), hvd::sum, {.timeout = 100ms});
    });
    CHECK(seen.told == 2);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("the peers of a staged communicator that is given up need not wait for their timeout") {
    for (int ranks = 2; ranks <= 4; ++ranks)
        hvd::run_threads(ranks, [](world_type& world) {
            const tensor<float> x{1};
            hvd::communicator<hvd::staged<hvd::threads>> gpus(world, {.timeout = 5s});
            if (world.rank() == 0)
                for (const char* why : {"it has had enough", "a later reason"})
                    hvd::detail::device_access::session_of(gpus)->give_up(why);
            const std::string why =
                text_of<hvd::peer_error>([&] { gpus.allreduce(x.view(), hvd::sum); });
            CHECK_MESSAGE(
                why.find(world.rank() == 0 ? "it has had enough" : "rank 0 left") != why.npos, why);
            CHECK_MESSAGE(why.find("a later reason") == why.npos, why);
            world.barrier();
        });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE_TEMPLATE("a call's name stands in its errors", Backend, nccl, hvd::staged<hvd::threads>,
                   hvd::hierarchical<nccl, hvd::threads>) {
    hvd::run_threads(2, [](world_type& world) {
        const tensor<float> x{1, 2}, y{1, 2, 3};
        hvd::communicator<Backend> gpus(world, impatient);
        const auto says = [](const std::string& why, const char* part) {
            CHECK_MESSAGE(why.find(part) != why.npos, why);
        };
        says(text_of<hvd::usage_error>(
                 [&] { gpus.allgather(x.view(), hvd::into(y.view()), {.name = "rows"}); }),
             "hvd: allgather 'rows' on rank ");
        world.barrier();
        gpus.allreduce(hvd::fuse(x.view(), y.view()), hvd::sum, {.name = "both"});
        // The name may end before the call.
        const std::string why = text_of<hvd::peer_error>([&] {
            if (world.rank() == 0) throw hvd::peer_error(0, "'loss' is left out", {});
            auto request = gpus.allreduce_async(x.view(), hvd::sum, {.name = std::string("loss")});
            request.wait();
        });
        says(why, "'loss'");
        world.barrier();
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE_TEMPLATE("a session is given up with the communicator of the host that it uses", Backend,
                   hvd::staged<hvd::threads>, hvd::hierarchical<nccl, hvd::threads>) {
    for (int ranks = 2; ranks <= 4; ranks += 2)
        hvd::run_threads(ranks,
                         [&](world_type& world) {
                             const tensor<float> x{1},
                                 all(std::vector<float>(std::size_t(ranks), 0));
                             hvd::communicator<Backend> gpus(world);
                             const auto& session = *hvd::detail::device_access::session_of(gpus);
                             if (world.rank() < ranks - 1) {
                                 CHECK_FALSE(session.broken());
                                 // The last rank never makes the call.
                                 const auto late = [&] {
                                     gpus.allgather(x.view(), hvd::into(all.view()),
                                                    {.timeout = 100ms * slowness});
                                 };
                                 CHECK_THROWS_AS(late(), hvd::peer_error);
                                 CHECK(session.broken());
                             }
                             world.barrier();
                         },
                         {.node_size = 2});
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
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
        CHECK_THROWS_AS(
            gpus.allreduce(x.view(), hvd::sum, {.timeout = 200ms * slowness, .stream = stream}),
            hvd::peer_error);
        held = false;
        cudaStreamDestroy(stream);
    });
    CHECK(seen.done == 3);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a rank that is late for the host's part of a hierarchical communicator") {
    // NCCL's part of a broadcast would never end, since no one waits for it.
    const auto late = [](bool plans) {
        hvd::run_threads(
            4,
            [plans](world_type& world) {
                const tensor<float> x{1}, y{1}, all(std::vector<float>(4));
                cudaStream_t stream{};
                cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
                {
                    hvd::communicator<hvd::hierarchical<nccl, hvd::threads>> gpus(world, impatient);
                    // NCCL connects the ranks in their first call, which waits for all.
                    gpus.broadcast(x.view(), hvd::root{0}, {.timeout = 10s});
                    if (world.rank() == 1) {
                        std::this_thread::sleep_for(1200ms * slowness);
                    } else {
                        gpus.broadcast_async(x.view(), hvd::root{0}, {.stream = stream})
                            .wait(stream);
                        if (plans)
                            CHECK_THROWS_AS(static_cast<void>(gpus.plan_allreduce(
                                                hvd::fuse(x.view(), y.view()), hvd::average)),
                                            hvd::peer_error);
                        else
                            CHECK_THROWS_AS(gpus.allgather(x.view(), hvd::into(all.view())),
                                            hvd::peer_error);
                        cudaStreamSynchronize(stream);
                    }
                }
                cudaStreamDestroy(stream);
            },
            {.node_size = 2});
        CHECK(emulation::live_objects() == 0);
    };
    late(true);
    late(false);
}

TEST_CASE("a failure of NCCL ends a hierarchical call before its ranks meet on the host") {
    std::atomic<bool> is_told = false;
    hvd::run_threads(
        4,
        [&](world_type& world) {
            const tensor<float> x(std::vector<float>(64, 1));
            hvd::communicator<hvd::hierarchical<nccl, hvd::threads>> gpus(
                world, {.timeout = 5s * slowness, .destructor_timeout = 200ms * slowness});
            gpus.allreduce(x.view(), hvd::sum, {.timeout = 60s});
            world.barrier();
            const int calls = emulation::calls_of("ncclReduceScatter"),
                      queries = emulation::calls_of("cudaEventQuery");
            world.barrier();
            // NCCL fails on rank 0 while it waits for rank 1 in the node. Nobody else asks NCCL.
            if (world.rank() == 0) {
                const std::string why =
                    text_of<hvd::error>([&] { gpus.allreduce(x.view(), hvd::sum); });
                CHECK_MESSAGE(why.find("ncclCommGetAsyncError") != std::string::npos, why);
                is_told = true;
            } else if (world.rank() == 1) {
                while (emulation::calls_of("ncclReduceScatter") == calls ||
                       emulation::calls_of("cudaEventQuery") < queries + 5)
                    std::this_thread::sleep_for(1ms);
                emulation::fail("ncclCommGetAsyncError", 1, ncclSystemError);
            }
            while (!is_told) std::this_thread::sleep_for(1ms);
            world.barrier();
        },
        {.node_size = 2});
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE(
    "calls of a hierarchical communicator end when their engine gives a reason, and tell it") {
    for (const bool by_nccl : {true, false})
        hvd::run_threads(2, [&](world_type& world) {
            const tensor<float> x{1}, all{0, 0};
            cudaStream_t stream{};
            cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
            std::atomic<bool> held = !by_nccl;
            emulation::enqueue(stream, [&held] {
                while (held) std::this_thread::yield();
            });
            int asked = 0;
            {
                hvd::communicator<hvd::hierarchical<nccl, hvd::threads>> gpus(
                    world, {.timeout = 5s, .destructor_timeout = 200ms * slowness});
                hvd::detail::device_access::session_of(gpus)->end_calls_if([&] {
                    const bool ends = !by_nccl || ++asked > 3;
                    return hvd::detail::message(ends ? "the engine has ended" : "");
                });
                // Rank 1 never makes the call. NCCL waits for it inside its first one. The host
                // looks at the reason when the timeout has passed.
                std::string why;
                if (world.rank() == 0)
                    why = text_of<hvd::peer_error>([&] {
                        if (by_nccl) gpus.allreduce(x.view(), hvd::sum, {.stream = stream});
                        else
                            gpus.allgather(x.view(), hvd::into(all.view()),
                                           {.timeout = 100ms, .stream = stream});
                    });
                if (world.rank() == 0)
                    CHECK_MESSAGE(why.find("the engine has ended") != std::string::npos, why);
                if (world.rank() == 0 && by_nccl) CHECK(asked > 3);
                held = false;
                world.barrier();
            }
            cudaStreamDestroy(stream);
        });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

// CUDA frees memory when all work of the device is done, and the waiting call is such work.
TEST_CASE("a timeout holds while plans, arenas and communicators end beside the call") {
    enum { plan, arena, communicator };
    for (const int ends : {plan, arena, communicator}) {
        CAPTURE(ends);
        hvd::run_threads(2, [&](world_type& world) {
            const tensor<float> x{1}, y{2}, z{3};
            hvd::communicator<nccl> waiting(world, {.timeout = 1s * slowness});
            auto other =
                std::make_optional<hvd::communicator<nccl>>(world, hvd::communicator_options{});
            auto planned =
                std::make_optional(other->plan_allreduce(hvd::fuse(y.view(), z.view()), hvd::sum));
            auto memory = std::make_unique<hvd::device_arena>(*other, 4096);
            planned->run();
            waiting.barrier();
            if (world.rank() == 0) {
                auto request = waiting.allreduce_async(x.view(), hvd::sum);
                if (ends == plan) planned.reset();
                if (ends == arena) memory.reset();
                if (ends == communicator) {
                    planned.reset();
                    memory.reset();
                    other.reset();
                }
                CHECK_THROWS_AS(request.wait(), hvd::timeout_error);
            } else if (ends == arena) {
                memory.reset();
            } else if (ends == communicator) {
                planned.reset();
                memory.reset();
                other.reset();
            }
            world.barrier();
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

// The thread that joins another one may have the request of its call.
TEST_CASE("a thread ends before its call, and the memory that it could not free goes later") {
    hvd::run_threads(2, [](world_type& world) {
        const tensor<float> x{1}, y{2}, z{3};
        hvd::communicator<nccl> waiting(world, {.timeout = 500ms * slowness}),
            other(world, {.timeout = 10s});
        auto planned =
            std::make_optional(other.plan_allreduce(hvd::fuse(y.view(), z.view()), hvd::sum));
        planned->run();
        waiting.barrier();
        world.barrier();
        const auto before = emulation::live_objects();
        world.barrier();
        if (world.rank() == 0) {
            hvd::device_request request;
            std::thread begins([&, mine = emulation::process_of_this_thread()] {
                emulation::join_process(mine);
                cudaSetDevice(waiting.device());
                request = waiting.allreduce_async(x.view(), hvd::sum);
                planned.reset();
            });
            begins.join();
            CHECK_THROWS_AS(request.wait(), hvd::timeout_error);
            CHECK(emulation::live_objects() < before);
        }
        world.barrier();
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

// As static objects may, which end after those of the main thread.
TEST_CASE("a communicator and its memory may end after all else that hvd has of their thread") {
    struct kept_objects {
        std::optional<hvd::communicator<nccl>> gpus;
        std::unique_ptr<hvd::device_arena> arena;
    };
    hvd::run_threads(1, [](world_type& world) {
        thread_local kept_objects kept;
        kept.gpus.emplace(world);
        kept.arena = std::make_unique<hvd::device_arena>(*kept.gpus, 4096);
        const auto x = kept.arena->tensor<float>(hvd::shape(10));
        kept.gpus->allreduce_async(x, hvd::sum).wait();
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

// After an access to foreign memory, for example, CUDA refuses everything until the process ends.
TEST_CASE("when a kernel has done harm, every rank is told, and communicators and plans end") {
    hvd::run_threads(3, [](world_type& world) {
        const tensor<float> x{1}, y{2};
        hvd::communicator<nccl> gpus(world, {.timeout = 10s});
        auto plan = gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::sum);
        plan.run();
        gpus.barrier();
        world.barrier();
        emulation::corrupt(cudaErrorIllegalAddress);
        const auto told = [&](auto call) {
            try {
                call();
                FAIL_CHECK("nobody was told");
            } catch (const hvd::cuda_error& e) {
                CHECK(e.code() == cudaErrorIllegalAddress);
            } catch (const hvd::peer_error&) {  // of the second call
            }
        };
        told([&] { gpus.allreduce(x.view(), hvd::sum); });
        told([&] { plan.run(); });
        world.barrier();
    });
    emulation::reset();
}

TEST_CASE("memory is freed when no call waits any more") {
    for (const bool tests : {false, true})  // a request that is tested lives on
        hvd::run_threads(2, [tests](world_type& world) {
            const tensor<float> x{1}, y{2}, z{3};
            hvd::communicator<nccl> gpus(world, {.timeout = 10s});
            auto planned =
                std::make_optional(gpus.plan_allreduce(hvd::fuse(y.view(), z.view()), hvd::sum));
            gpus.barrier();
            world.barrier();
            const auto before = emulation::live_objects();
            world.barrier();
            hvd::device_request request;
            if (world.rank() == 0) {
                request = gpus.allreduce_async(x.view(), hvd::sum);
                planned.reset();
            }
            world.barrier();
            if (world.rank() == 1) gpus.allreduce(x.view(), hvd::sum);
            else if (!tests) request.wait();
            else
                while (!request.test()) std::this_thread::yield();
            world.barrier();
            if (world.rank() == 0) CHECK(emulation::live_objects() < before);
            world.barrier();
        });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

// CUDA loads a kernel at its first launch, and waits for the device then.
TEST_CASE("no launch waits for a collective, since all kernels are loaded before") {
    emulation::unload_kernels();
    hvd::run_threads(2, [](world_type& world) {
        const tensor<float> x{1}, y{2}, z{3};
        hvd::communicator<nccl> first(world, {.timeout = 2s * slowness}),
            second(world, {.timeout = 2s * slowness});
        auto packed = second.plan_allreduce(hvd::fuse(y.view(), z.view()), hvd::sum);
        CHECK(packed.packed_bytes() > 0);
        first.barrier();
        if (world.rank() == 0) {
            auto request = first.allreduce_async(x.view(), hvd::sum);
            packed.run();  // begins with a kernel
            request.wait();
        } else {
            packed.run();
            first.allreduce(x.view(), hvd::sum);
        }
        CHECK(x.values()[0] == 2);
        CHECK(y.values()[0] == 4);
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

// With CUDA_LAUNCH_BLOCKING=1 NCCL's thread is in a call until its kernel is done.
TEST_CASE("where launches block, calls have their results, and a late one throws") {
    emulation::block_launches(true);
    hvd::run_threads(2, [](world_type& world) {
        const tensor<float> x{1}, y{2}, z{3};
        cudaDeviceSynchronize();  // `stream` does not come after the copies to the tensors
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        {
            hvd::communicator<nccl> gpus(world, {.timeout = 10s});
            auto plan = gpus.plan_allreduce(hvd::fuse(y.view(), z.view()), hvd::average);
            gpus.allreduce_async(x.view(), hvd::sum, {.stream = stream}).wait(stream);
            plan.run(stream);
            CHECK(x.values()[0] == 2);
            CHECK(z.values()[0] == 3);
            world.barrier();
            if (world.rank() == 0) {
                CHECK_THROWS_AS(static_cast<void>(gpus.allreduce_async(
                                    x.view(), hvd::sum, {.timeout = 300ms * slowness})),
                                hvd::timeout_error);
                CHECK_THROWS_AS(plan.run(), hvd::peer_error);
            }
            world.barrier();
        }
        cudaStreamDestroy(stream);
    });
    CHECK(emulation::live_objects() == 0);
    emulation::block_launches(false);
    emulation::reset();
}

TEST_CASE("an error of the caller's is no error of hvd's, and is still there after its calls") {
    on_gpus([](auto& gpus) {
        const tensor<float> x{1}, y{2};
        const tensor<hvd::bfloat16> narrow{hvd::bfloat16(1.0f)};
        CHECK(cudaSetDevice(99) == cudaErrorInvalidDevice);  // the caller does not look
        auto both = gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::sum);
        both.run();
        gpus.allreduce(narrow.view(), hvd::sum, {.prescale = 0.3});
        gpus.allreduce_async(y.view(), hvd::max).wait();
        CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
        CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
        CHECK(cudaGetLastError() == cudaSuccess);
        for (int i = 0; i < 5; ++i) gpus.allreduce(x.view(), hvd::max);  // it asks until it is done
        CHECK(cudaGetLastError() == cudaSuccess);
    });
}

TEST_CASE("each rank of a node gets a GPU of its own, or all are told why not") {
    hvd::run_threads(4, [](world_type& world) { CHECK(hvd::pin_device(world) == world.rank()); });
    hvd::run_threads(4,
                     [](world_type& world) { CHECK(hvd::pin_device(world) == world.rank() % 2); },
                     {.node_size = 2});
    const outcome five = [] {
        outcome seen;
        hvd::run_threads(5, [&](world_type& world) {
            try {
                hvd::pin_device(world);
            } catch (const hvd::usage_error& e) {  // the emulation has four GPUs
                CHECK(std::string(e.what()).find(
                          "would share the GPU GPU-a0000000-0000-0000-0000-000000000000: start") !=
                      std::string::npos);
                count(seen.failed);
            } catch (const hvd::peer_error& e) {
                CHECK(e.peers() == std::vector<int>{0, 4});
                CHECK(std::string(e.what()).find("rank 0 refused it: hvd: pin_device on rank 0: "
                                                 "local ranks 0 and 4") != std::string::npos);
                count(seen.told);
            }
        });
        return seen;
    }();
    CHECK(five.failed == 2);
    CHECK(five.told == 3);
    hvd::run_threads(5, [](world_type& world) {
        CHECK(hvd::pin_device(world, {.share = true}) == world.rank() % 4);
    });
    emulation::reset();
    emulation::fail("cudaGetDeviceCount", 1, cudaErrorNoDevice);
    hvd::run_threads(1, [](world_type& world) {
        try {
            hvd::pin_device(world);
            FAIL("there was a device");
        } catch (const hvd::cuda_error& e) {
            CHECK(std::string(e.what()).find("no usable GPU or driver was found") !=
                  std::string::npos);
        }
    });
    emulation::reset();
}

}  // namespace faults_tests
