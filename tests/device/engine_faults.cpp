// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Faults of an engine's device tensors: ranks that disagree, wrong calls, failures of a device,
// ranks that leave. Nobody hangs, everybody is told, nothing leaks.

#include <atomic>
#include <thread>

#include <chrono>

#include "engine_support.hpp"

namespace engine_faults_tests {

using namespace device_test;

namespace {

// Tensors of both kinds, in steps that repeat and so are predicted.
void work(auto& e) {
    const tensor<float> x(filled(50, 1.0f)), y(filled(9, 1.0f)), all(filled(30, 0.0f));
    std::vector<float> h(20, 1);
    for (int step = 0; step < 5; ++step) {
        auto a = e.allreduce("x", x.view(), hvd::average);
        auto b = e.allreduce("y", y.view(), hvd::average);
        auto c = e.allreduce("h", h, hvd::average);
        auto d = e.allgather("all", y.view(), hvd::into(all.view()));
        a.wait(), b.wait(), c.wait(), d.wait();
    }
}

// The k-th call of a function fails while three ranks work. It returns what they threw.
template <class Devices>
std::vector<std::string> fail_at(const char* function, int k) {
    std::vector<std::string> thrown(3);
    hvd::run_threads(3, [&](world_communicator& world) {
        hvd::communicator<Devices> gpus(world, {.timeout = 20s});
        thrown[std::size_t(world.rank())] = text_of<hvd::error>([&] {
            hvd::engine e{world, gpus};
            world.barrier();
            if (world.rank() == 0) emulation::reset();
            if (world.rank() == 0 && k > 0) emulation::fail(function, k, 3);
            world.barrier();
            work(e);
        });
    });
    CHECK(emulation::live_objects() == 0);
    return thrown;
}

template <class Devices>
void fail_in_engines(std::initializer_list<const char*> functions) {
    for (const char* function : functions) {
        fail_at<Devices>(function, 0);
        const int n = emulation::calls_of(function);
        INFO(std::string(function), ", called ", n, " times");
        REQUIRE(n > 0);
        for (const int k : {1, n / 4 + 1, n / 2}) {
            INFO("call ", k);
            const auto begun = std::chrono::steady_clock::now();
            for (const std::string& what : fail_at<Devices>(function, k))
                CHECK_MESSAGE(
                    (has(what, function) || has(what, "unwound on rank") || has(what, " left (")),
                    what);
            // Much less than the timeout, on a machine that is not busy.
            CHECK(std::chrono::steady_clock::now() - begun < 15s * slowness);
        }
        emulation::reset();
    }
}

// Runs f(engine, rank) on three ranks, whose engine ends by an error. It returns what each rank was
// told, or an empty text.
template <class Devices, class F>
std::vector<std::string> told_on_each(F f, const hvd::engine_options& options = {}) {
    std::vector<std::string> told(3);
    hvd::run_threads(3, [&](world_communicator& world) {
        hvd::communicator<Devices> gpus(world, {.timeout = 20s});
        told[std::size_t(world.rank())] = text_of<hvd::error>([&] {
            hvd::engine e{world, gpus, options};
            f(e, world.rank());
        });
    });
    check_clean();
    return told;
}

}  // namespace

TEST_CASE_TEMPLATE("a tensor of the host here and of a device there is a mismatch of all ranks",
                   Devices, every_kind) {
    on_engines<Devices>(
        [](auto& e) {
            const tensor<float> x{1}, y{1};
            std::vector<float> h{1};
            auto other = e.allreduce("other", y.view(), hvd::sum);
            const std::string why = text_of<hvd::mismatch_error>([&] {
                if (e.rank() == 0) e.allreduce("x", h, hvd::sum).wait();
                else e.allreduce("x", x.view(), hvd::sum).wait();
            });
            INFO(why);
            CHECK(has(why, "memory"));
            CHECK(has(why, "rank 0: host"));
            CHECK(has(why, "rank 1: device"));
            other.wait();
            CHECK(y.values()[0] == float(e.size()));
            e.allreduce("x", x.view(), hvd::sum).wait();  // the name is free again
        },
        2);
}

TEST_CASE_TEMPLATE("ranks that disagree about a device tensor get all values, and go on", Devices,
                   every_kind) {
    on_engines<Devices>(
        [](auto& e) {
            const tensor<float> x(filled(e.rank() == 0 ? 3 : 4, 1.0f)), y{1};
            const tensor<std::int32_t> i{1};
            const std::string shapes =
                text_of<hvd::mismatch_error>([&] { e.allreduce("x", x.view(), hvd::sum).wait(); });
            CHECK(has(shapes, "rank 0: [3]"));
            CHECK(has(shapes, "rank 1: [4]"));
            const std::string types = text_of<hvd::mismatch_error>([&] {
                if (e.rank() == 0) e.broadcast("b", y.view()).wait();
                else e.broadcast("b", i.view()).wait();
            });
            CHECK(has(types, "float32"));
            CHECK(has(types, "int32"));
            // The step is predicted when the disagreement comes.
            for (int step = 0; step < 6; ++step) {
                e.allreduce("step", y.view(), hvd::average).wait();
                if (step == 4)
                    CHECK_THROWS_AS(e.allreduce("late", x.view(), hvd::sum).wait(),
                                    hvd::mismatch_error);
            }
            CHECK(y.values()[0] == 1);
        },
        2);
}

TEST_CASE_TEMPLATE("a wrong call is refused on its rank, and its peers learn why", Devices,
                   every_kind) {
    on_engines<Devices>(
        [](auto& e) {
            const tensor<float> x{1, 2, 3}, y(filled(40, 0.0f));
            std::vector<float> h(3);
            const bool wrong = e.rank() == 1;
            const auto refused = [&](const char* name, const char* part, auto submit) {
                const std::string why =
                    wrong ? text_of<hvd::usage_error>(submit) : text_of<hvd::peer_error>(submit);
                INFO(name, ": ", why);
                CHECK(has(why, part));
                CHECK(has(why, "rank 1"));
            };
            refused("host", "host memory", [&] {
                e.allreduce("host", hvd::device_view(wrong ? h.data() : x.data(), 3), hvd::sum)
                    .wait();
            });
            refused("null", "null pointer", [&] {
                e.allreduce("null", hvd::device_view(wrong ? nullptr : x.data(), 3), hvd::sum)
                    .wait();
            });
            refused("root", "root 9 is not a rank",
                    [&] { e.broadcast("root", x.view(), hvd::root{wrong ? 9 : 0}).wait(); });
            refused("late", ".timeout is -2 ns, and must be more than 0, or hvd::forever", [&] {
                const auto timeout =
                    wrong ? hvd::time_limit(std::chrono::nanoseconds(-2)) : hvd::time_limit();
                e.allreduce("late", x.view(), hvd::sum, {.timeout = timeout}).wait();
            });
            refused("slice", "into() has 40 elements", [&] {
                const std::size_t n = std::size_t(e.size()), r = std::size_t(e.rank());
                const std::size_t mine = wrong ? 40 : 3 / n + (r < 3 % n ? 1 : 0);
                e.reduce_scatter("slice", x.view(), hvd::sum,
                                 hvd::into(hvd::device_view(y.data(), mine)))
                    .wait();
            });
            refused("room", "into() on rank 1 has 2 elements", [&] {
                e.allgather("room", x.view(), hvd::into(hvd::device_view(y.data(), wrong ? 2 : 40)))
                    .wait();
            });
            refused("overlap", "apart", [&] {
                e.allgather(
                     "overlap", x.view(),
                     hvd::into(hvd::device_view(wrong ? x.data() : y.data(), wrong ? 3 : 40)))
                    .wait();
            });
            refused("counts", "the counts has 1 elements", [&] {
                std::vector<int> counts(wrong ? 1 : std::size_t(e.size()), 0);
                e.alltoall("counts", hvd::device_view(x.data(), 0), counts, hvd::into(y.view()))
                    .wait();
            });
            e.allreduce("x", x.view(), hvd::sum).wait();  // the engine goes on
            CHECK(x.values()[2] == float(3 * e.size()));
        },
        2);
}

TEST_CASE_TEMPLATE("a rank without memory for a device tensor tells its peers, and goes on",
                   Devices, every_kind) {
    // A callback that can't be copied stands for the end of the memory.
    struct uncopied {
        explicit uncopied(bool& ends) : memory_ends(ends) {}
        uncopied(const uncopied& other) : memory_ends(other.memory_ends) {
            if (memory_ends) throw std::bad_alloc();
        }
        void operator()(std::exception_ptr) const {}
        bool& memory_ends;
    };
    on_engines<Devices>(
        [](auto& e) {
            const tensor<float> x{1, 2, 3}, y{4};
            bool memory_ends = false;
            hvd::named_device_options o;
            o.then = uncopied(memory_ends);
            const bool here = memory_ends = e.rank() == 1;
            const auto submit = [&] { e.allreduce("x", x.view(), hvd::sum, o).wait(); };
            if (here) {
                CHECK_THROWS_AS(submit(), std::bad_alloc);
            } else {
                const std::string why = text_of<hvd::peer_error>(submit);
                CHECK_MESSAGE(has(why, "rank 1 refused it"), why);
            }
            memory_ends = false;
            submit();
            e.allreduce("y", y.view(), hvd::sum).wait();
            CHECK(x.values()[0] == float(e.size()));
            CHECK(y.values()[0] == float(4 * e.size()));
        },
        2);
}

TEST_CASE("a stream that is being captured gives no tensor to an engine") {
    on_engines_of<hvd::nccl>(2, [](auto& e) {
        const tensor<float> x{1};
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        const std::string why = text_of<hvd::error>(
            [&] { e.allreduce("x", x.view(), hvd::sum, {.stream = stream}).wait(); });
        CHECK(has(why, "captured"));
        cudaGraph_t graph{};
        cudaStreamEndCapture(stream, &graph);
        cudaGraphDestroy(graph);
        cudaStreamDestroy(stream);
        e.allreduce("x", x.view(), hvd::sum).wait();
        CHECK(x.values()[0] == 2);
    });
}

TEST_CASE("both communicators need the same ranks in the same order") {
    hvd::run_threads(4, [](world_communicator& world) {
        auto turned = world.split(0, -world.rank()), half = world.split(world.rank() / 2),
             other = world.split(world.rank() % 2);
        for (auto* wrong : {&turned, &half, &other}) {
            hvd::communicator<hvd::staged<hvd::threads>> gpus(*wrong);
            // Ranks 0 and 3 of `half` and `other` have the same numbers in both.
            auto& whole = wrong == &other ? half : world;
            CHECK_THROWS_AS((hvd::engine{whole, gpus}), hvd::error);
        }
        hvd::communicator<hvd::staged<hvd::threads>> none;
        CHECK_THROWS_AS((hvd::engine{world, none}), hvd::usage_error);
    });
    check_clean();
}

TEST_CASE_TEMPLATE("what ranks that have joined can't do is refused on all ranks", Devices,
                   every_kind) {
    on_engines<Devices>(
        [](auto& e) {
            if (e.rank() > 0) {
                const tensor<float> x{1, 2, 3, 4}, y(filled(9, 0.0f));
                const auto why = [&](auto submit) { return text_of<hvd::peer_error>(submit); };
                const std::size_t mine =
                    4 / std::size_t(e.size()) + (e.rank() < 4 % e.size() ? 1 : 0);
                CHECK(has(why([&] {
                              e.reduce_scatter("s", x.view(), hvd::sum,
                                               hvd::into(hvd::device_view(y.data(), mine)))
                                  .wait();
                          }),
                          "needs all ranks"));
                CHECK(has(why([&] { e.broadcast("b", x.view(), hvd::root{0}).wait(); }),
                          "the root has no tensor"));
                CHECK(has(
                    why([&] { e.allreduce("g", hvd::fuse(x.view(), y.view()), hvd::sum).wait(); }),
                    "does not know the device tensors of the group"));
                e.allreduce("x", x.view(), hvd::sum).wait();  // the engine goes on
                CHECK(x.values()[0] == float(e.size() - 1));
            }
            e.join().wait();
        },
        2);
}

TEST_CASE("a rank that has joined and has no memory for the rows of others ends the engine") {
    std::vector<std::string> told(3);
    hvd::run_threads(3, [&](world_communicator& world) {
        hvd::communicator<hvd::nccl> gpus(world);  // without a timeout: nobody hangs
        told[std::size_t(world.rank())] = text_of<hvd::error>([&] {
            hvd::engine e{world, gpus};
            const tensor<float> x(filled(1000, 1.0f)), all(filled(3000, 0.0f));
            hvd::result<int> joined;
            if (world.rank() == 2) joined = e.join();
            world.barrier();
            // The first is for as many rows as rank 0 has.
            if (world.rank() == 0) emulation::fail("cudaMalloc", 2, 2);
            world.barrier();
            if (world.rank() < 2) {
                e.allgather("rows", x.view(), hvd::into(all.view())).wait();
                joined = e.join();
            }
            joined.wait();
        });
    });
    for (const std::string& why : told) CHECK_MESSAGE(has(why, "cudaMalloc"), why);
    check_clean();
}

TEST_CASE("calls of CUDA and NCCL that fail in an engine: nobody hangs, and all are told why") {
    fail_in_engines<hvd::nccl>({"ncclAllReduce", "ncclAllGather", "ncclGroupEnd", "cudaEventRecord",
                                "cudaStreamWaitEvent", "cudaEventCreateWithFlags"});
}

TEST_CASE("calls of CUDA that fail in an engine on staged tensors") {
    fail_in_engines<hvd::staged<hvd::threads>>({"cudaEventRecord", "cudaMemcpyAsync"});
}

TEST_CASE("work that fails after all of its engine's units is told to all ranks") {
    for (int failing = 0; failing < 3; ++failing) {
        std::vector<std::string> told(3);
        hvd::run_threads(3, [&](world_communicator& world) {
            std::atomic<bool> is_held{true}, is_called{false};
            const user_stream user;
            const tensor<float> x{1};
            std::vector<float> h{1};
            const bool fails = world.rank() == failing;
            hvd::communicator<hvd::nccl> gpus(world, {.timeout = 20s});
            hvd::engine e{world, gpus};
            hvd::named_device_options o{.stream = user.handle};
            if (fails) {
                emulation::enqueue(user.handle, [&] {
                    while (is_held) std::this_thread::sleep_for(100us);
                });
                o.then = [&](std::exception_ptr) { is_called = true; };
            }
            auto pending = e.allreduce("x", x.view(), hvd::sum, o);
            e.allreduce("h", h, hvd::sum).wait();
            world.barrier();  // only the thread that watches the work looks at events
            if (fails) {
                emulation::fail("cudaEventQuery", 1, cudaErrorECCUncorrectable);
                while (!is_called) std::this_thread::yield();
                is_held = false;
                told[std::size_t(failing)] = text_of<hvd::cuda_error>([&] { pending.wait(); });
            } else {
                told[std::size_t(world.rank())] =
                    text_of<hvd::peer_error>([&] { e.allreduce("h", h, hvd::sum).wait(); });
            }
        });
        for (const std::string& why : told) CHECK_MESSAGE(has(why, "cudaEventQuery"), why);
        check_clean();
    }
}

TEST_CASE_TEMPLATE("a rank that fails ends the engine on all ranks", Devices, every_kind) {
    const auto told = told_on_each<Devices>([](auto& e, int rank) {
        const tensor<float> x{1}, y{1};
        e.allreduce("x", x.view(), hvd::sum).wait();
        auto open = e.allreduce("only here " + std::to_string(rank), y.view(), hvd::sum);
        if (rank == 1)
            e.fail(std::make_exception_ptr(hvd::usage_error(1, "the reader has no more paper")));
        open.wait();
    });
    for (const std::string& why : told) CHECK_MESSAGE(has(why, "no more paper"), why);
}

TEST_CASE_TEMPLATE("the end of an engine waits for no callback that a refused tensor has had",
                   Devices, every_kind) {
    for (int ranks = 2; ranks <= 4; ++ranks)
        hvd::run_threads(ranks,
                         [](world_communicator& world) {
                             hvd::communicator<Devices> gpus(world, {.timeout = 20s});
                             const tensor<float> x(filled(world.rank() == 0 ? 3 : 4, 1.0f));
                             std::atomic<int> called{0};
                             {
                                 hvd::engine e{world, gpus};
                                 auto odd = e.allreduce("x", x.view(), hvd::sum,
                                                        {.then = [&](auto) { ++called; }});
                                 CHECK_THROWS_AS(odd.wait(), hvd::mismatch_error);
                             }
                             CHECK(called == 1);
                         },
                         {.destructor_timeout = 600s});
    check_clean();
}

TEST_CASE_TEMPLATE("a rank that leaves with tensors in flight", Devices, every_kind) {
    const auto told = told_on_each<Devices>([](auto& e, int rank) {
        const tensor<float> x{1}, y{1};
        for (int step = 0; step < 5; ++step) e.allreduce("x", x.view(), hvd::sum).wait();
        if (rank == 2) return;
        e.allreduce("y", y.view(), hvd::sum).wait();
    });
    CHECK_MESSAGE(has(told[0], "rank 2"), told[0]);
    CHECK_MESSAGE(has(told[1], "rank 2"), told[1]);
}

TEST_CASE_TEMPLATE("work under way outlives its engine, and a request that is dropped is complete",
                   Devices, every_kind) {
    hvd::run_threads(3, [](world_communicator& world) {
        hvd::communicator<Devices> gpus(world, {.timeout = 20s});
        const tensor<float> x(filled(100, 1.0f)), y(filled(100, 1.0f));
        hvd::named_device_request kept;
        {
            hvd::engine e{world, gpus};
            kept = e.allreduce("x", x.view(), hvd::sum);
            {
                auto dropped = e.allreduce("y", y.view(), hvd::sum);
            }
            CHECK(y.values() == filled(100, 3.0f));
        }
        kept.wait();
        CHECK(x.values() == filled(100, 3.0f));
        CHECK(!kept);
        kept.wait();
        CHECK(kept.test());
    });
    check_clean();
}

}  // namespace engine_faults_tests
