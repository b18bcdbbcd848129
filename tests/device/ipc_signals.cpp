// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// CUDA IPC whose streams meet by signals, so that small calls are only enqueued: ranks have a GPU
// each.

#include <atomic>
#include <random>
#include <string>
#include <thread>

#include "failures.hpp"
#include "ipc_checks.hpp"
#include "sanitizers.hpp"

namespace ipc_signals_tests {

using namespace device_test;
using namespace ipc_test;

namespace {

// Runs f on 1 to 4 threads as ranks.
template <class F>
void on_ranks(F f, int least = 1, const hvd::communicator_options& options = {.deadline = 20s}) {
    for (int ranks = least; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks, [&](world_type& world) {
            hvd::pin_device(world);
            gpu_communicator gpus(world, options);
            f(gpus, world);
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

void check_has(const std::string& text, const std::string& part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
}

void check_works(gpu_communicator& gpus) {
    const tensor<float> x{1, 2};
    for (int i = 0; i < 3; ++i) gpus.allreduce(x.view(), hvd::sum);
    const float n = float(gpus.size());
    CHECK(x.values()[1] == 2 * n * n * n);
    const tensor<float> large(std::vector<float>(300000, 1));
    gpus.allreduce(large.view(), hvd::sum);
    CHECK(large.values().back() == n);
}

class user_stream {
public:
    user_stream() { cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
    user_stream(const user_stream&) = delete;
    ~user_stream() { cudaStreamDestroy(stream_); }
    cudaStream_t get() const { return stream_; }

private:
    cudaStream_t stream_{};
};

}  // namespace

TEST_CASE("every collective, small and large, in windows and arenas") {
    for (const std::size_t window : {std::size_t(4096), std::size_t(1) << 20})
        on_ranks(
            [](auto& gpus, auto&) {
                const auto report = [&](bool right, const char* what) {
                    CHECK_MESSAGE(right, what, " on rank ", gpus.rank(), " of ", gpus.size());
                };
                for (const place where : {place::plain, place::mixed})
                    for (const std::size_t count : {0, 1, 33, 1025}) {
                        check_reduction<float>(gpus, where, count, hvd::average, report, 0.3);
                        check_movements<std::int16_t>(gpus, where, count, true, report);
                        check_movements<float>(gpus, where, count, false, report);
                        check_uneven_alltoall<double>(gpus, where, count, report);
                    }
            },
            1, {.deadline = 20s, .device_window_bytes = window});
}

TEST_CASE("a small call is a copy, a kernel, a word and waits, and the host does not meet others") {
    on_ranks(
        [](auto& gpus, auto& world) {
            const tensor<float> x(numbers<float>(100, gpus.rank()));
            gpus.barrier();
            const char* const functions[] = {"cudaMemcpyAsync", "launch_reduction",
                                             "cuStreamWriteValue32", "cuStreamWaitValue32",
                                             "cudaEventRecord"};
            std::vector<int> before;
            world.barrier();
            for (const char* f : functions) before.push_back(emulation::calls_of(f));
            world.barrier();
            constexpr int calls = 5;
            std::vector<hvd::device_request> pending;
            for (int i = 0; i < calls; ++i)
                pending.push_back(gpus.allreduce_async(x.view(), hvd::sum));
            for (auto& p : pending) p.wait();
            world.barrier();
            const int all = calls * gpus.size();
            const int expected[] = {all, all, all, all * (gpus.size() - 1),
                                    3 * all};  // behind the default stream, the call, the request
            for (std::size_t i = 0; i < 5; ++i)
                CHECK_MESSAGE(emulation::calls_of(functions[i]) - before[i] == expected[i],
                              functions[i]);
            world.barrier();
        },
        2);
}

TEST_CASE("ranks enqueue small calls before the others come") {
    std::atomic<int> begun = 0;
    on_ranks([&](auto& gpus, auto&) {
        const tensor<int> x{gpus.rank() + 1};
        if (gpus.rank() == 0) begun = 0;
        gpus.barrier();
        auto first = gpus.allreduce_async(x.view(), hvd::sum);
        auto second = gpus.allreduce_async(x.view(), hvd::max);
        // The last rank begins when the others have begun both.
        ++begun;
        while (begun < gpus.size()) std::this_thread::yield();
        second.wait();
        first.wait();
        CHECK(x.values()[0] == gpus.size() * (gpus.size() + 1) / 2);
        gpus.barrier();
    });
}

TEST_CASE("thousands of calls on several streams, small and large in any order, without a wait") {
    // A rank that is alone would not order the streams.
    const auto work = [](auto& gpus, auto&) {
        const int n = gpus.size(), r = gpus.rank();
        std::minstd_rand same_on_all(7);
        const user_stream streams[3];
        std::vector<std::unique_ptr<tensor<int>>> tensors;
        std::vector<std::vector<int>> expected;
        constexpr int kinds = 12;
        for (int i = 0; i < kinds; ++i) {
            const std::size_t count = i == kinds - 1 ? 70000 : std::size_t(1 + 97 * i);
            std::vector<int> values(count), sums(count);
            for (std::size_t k = 0; k < count; ++k) {
                values[k] = int(k % 13) + r * 7 + i;
                for (int p = 0; p < n; ++p) sums[k] += int(k % 13) + p * 7 + i;
            }
            tensors.push_back(std::make_unique<tensor<int>>(values));
            tensors.push_back(std::make_unique<tensor<int>>(std::vector<int>(count)));
            expected.push_back(sums);
        }
        cudaDeviceSynchronize();
        std::vector<hvd::device_request> pending;
        for (int call = 0; call < 700; ++call) {
            const unsigned which = unsigned(same_on_all()) % 100, stream = unsigned(same_on_all());
            const unsigned i = which < 4 ? kinds - 1 : which % (kinds - 1);
            pending.push_back(gpus.allreduce_async(tensors[2 * i]->view(),
                                                   tensors[2 * i + 1]->view(), hvd::sum,
                                                   {.stream = streams[stream % 3].get()}));
            if (which == 50) gpus.barrier();
        }
        for (auto& p : pending) p.wait();
        for (std::size_t i = 0; i < kinds; ++i) CHECK(tensors[2 * i + 1]->values() == expected[i]);
    };
    on_ranks(work, 2);
}

TEST_CASE("calls that depend on the one before, many more than the board has room for") {
    on_ranks([](auto& gpus, auto&) {
        const tensor<std::uint32_t> x{std::uint32_t(gpus.rank() + 1), 1};
        const user_stream stream;
        cudaDeviceSynchronize();
        const auto n = std::uint32_t(gpus.size());
        std::vector<std::uint32_t> expected{n * (n + 1) / 2, n};
        for (int i = 0; i < 300; ++i) {
            // One rank is late now and then, so that the others run ahead to the board's end.
            if (i % 100 == 50 && gpus.rank() == 0) std::this_thread::sleep_for(5ms);
            gpus.allreduce_async(x.view(), hvd::sum, {.stream = stream.get()}).wait(stream.get());
            for (auto& e : expected)
                if (i > 0) e *= n;
        }
        cudaStreamSynchronize(stream.get());
        CHECK(x.values() == expected);
    });
}

TEST_CASE("ranks whose small calls differ are told so where they wait, and work on") {
    on_ranks(
        [](auto& gpus, auto&) {
            const bool odd = gpus.rank() == 1;
            const tensor<float> two{1, 2}, three{1, 2, 3};
            const std::string blocking = text_of<hvd::mismatch_error>(
                [&] { gpus.allreduce(odd ? three.view() : two.view(), hvd::sum); });
            check_has(blocking, "ranks disagree on count: rank 0: 2, rank 1: 3");
            check_works(gpus);
            auto before = gpus.allreduce_async(two.view(), hvd::sum);
            auto wrong =
                odd ? gpus.broadcast_async(two.view()) : gpus.allreduce_async(two.view(), hvd::max);
            auto after = gpus.allreduce_async(two.view(), hvd::sum);
            after.wait();
            check_has(text_of<hvd::mismatch_error>([&] { wrong.wait(); }),
                      "disagree on collective: rank 0: allreduce, rank 1: broadcast");
            before.wait();
            check_works(gpus);
        },
        2);
}

TEST_CASE("a small call where others make a large one, an agreement or a split") {
    on_ranks(
        [](auto& gpus, auto&) {
            const bool odd = gpus.rank() == 1;
            const tensor<float> two{1, 2}, large(std::vector<float>(300000));
            check_has(text_of<hvd::mismatch_error>(
                          [&] { gpus.allreduce(odd ? large.view() : two.view(), hvd::sum); }),
                      "rank 0: 2, rank 1: 300000");
            check_works(gpus);
            check_has(text_of<hvd::mismatch_error>([&] {
                          if (odd) gpus.allreduce(two.view(), hvd::sum);
                          else (void)gpus.plan_allreduce(two.view(), hvd::sum);
                      }),
                      "rank 0: making of a plan: fused allreduce, rank 1: allreduce");
            check_works(gpus);
            check_has(text_of<hvd::mismatch_error>([&] {
                          if (odd) gpus.barrier();
                          else (void)gpus.split(0);
                      }),
                      "split");
            check_works(gpus);
        },
        2);
}

TEST_CASE("a refusal is told to ranks whose small call is enqueued, and they work on") {
    on_ranks(
        [](auto& gpus, auto&) {
            const tensor<int> x{1, 2};
            if (gpus.rank() == 1) {
                check_has(text_of<hvd::usage_error>(
                              [&] { gpus.allreduce(x.view(), hvd::sum, {.postscale = 0.5}); }),
                          "can't be scaled");
                CHECK_THROWS_AS(gpus.broadcast(x.view(), hvd::root{7}), hvd::usage_error);
            } else {
                check_has(text_of<hvd::peer_error>([&] { gpus.allreduce(x.view(), hvd::sum); }),
                          "rank 1 refused it");
                CHECK_THROWS_AS(gpus.broadcast(x.view()), hvd::peer_error);
            }
            check_works(gpus);
        },
        2);
}

TEST_CASE("gradients that differ are told before a stream may use them") {
    on_ranks(
        [](auto& gpus, auto&) {
            const tensor<float> two{1, 2}, three{1, 2, 3};
            const auto x = gpus.rank() == 1 ? three.view() : two.view();
            const user_stream stream;
            cudaDeviceSynchronize();
            auto& session = *hvd::detail::device_access::session_of(gpus);
            auto running = gpus.allreduce_async(x, hvd::sum, {.stream = stream.get()});
            check_has(text_of<hvd::mismatch_error>(
                          [&] { session.compare_now("gradients", session.limit_for({})); }),
                      "rank 0: 2, rank 1: 3");
            running.wait(stream.get());
            check_works(gpus);
        },
        2);
}

TEST_CASE("a difference of which nobody hears gives the communicator up") {
    // Streams that are let go on read what others still write, which nobody uses any more.
    if (hvd_test::under_tsan) return;
    on_ranks(
        [](auto& gpus, auto&) {
            const tensor<float> two{1, 2}, three{1, 2, 3};
            const user_stream stream;
            cudaDeviceSynchronize();
            const auto x = gpus.rank() == 1 ? three.view() : two.view();
            if (gpus.rank() == 0) {
                auto dropped = gpus.allreduce_async(x, hvd::sum, {.stream = stream.get()});
            } else {
                try {
                    gpus.allreduce_async(x, hvd::sum, {.stream = stream.get()}).wait(stream.get());
                } catch (const hvd::error&) {  // it came to light at once
                    gpus.abort();
                }
            }
            cudaStreamSynchronize(stream.get());
            bool told = false;
            for (int i = 0; i < 1000 && !told; ++i) {
                try {
                    gpus.barrier();
                } catch (const hvd::peer_error&) {
                    told = true;
                }
            }
            CHECK(told);
        },
        2);
}

TEST_CASE("a stream that waits for a rank that does not come goes on after the deadline") {
    // A stream that goes on after a give-up reads a window while its owner's stream writes there.
    // Nobody uses what it reads.
    if (hvd_test::under_tsan) return;
    const outcome seen = with_failures("", [](world_type& world) {
        hvd::pin_device(world);
        const tensor<float> x{1};
        const user_stream stream;
        cudaDeviceSynchronize();
        {
            gpu_communicator gpus(world, {.deadline = 20s});
            if (world.rank() != 0) {
                for (int i = 0; i < 3; ++i)
                    gpus.allreduce_async(
                            x.view(), hvd::sum,
                            {.deadline = std::chrono::milliseconds(200), .stream = stream.get()})
                        .wait(stream.get());
                cudaStreamSynchronize(stream.get());
                CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);
            }
            world.barrier();
            CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);
        }
    });
    CHECK(seen.done == 3);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("an abort frees the streams of all ranks, also without a deadline") {
    // A stream that goes on after a give-up reads a window while its owner's stream writes there.
    // Nobody uses what it reads.
    if (hvd_test::under_tsan) return;
    const outcome seen = with_failures("", [](world_type& world) {
        hvd::pin_device(world);
        const tensor<float> x{1};
        const user_stream stream;
        cudaDeviceSynchronize();
        {
            gpu_communicator gpus(world);
            gpus.allreduce(x.view(), hvd::sum);
            world.barrier();
            if (world.rank() == 0) {
                std::this_thread::sleep_for(20ms);
                gpus.abort();
            } else {
                gpus.allreduce_async(x.view(), hvd::sum, {.stream = stream.get()})
                    .wait(stream.get());
                if (world.rank() == 1) cudaStreamSynchronize(stream.get());
                else CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum), hvd::peer_error);
            }
            cudaStreamSynchronize(stream.get());
            CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);
        }
    });
    CHECK(seen.done == 3);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a rank that leaves without the call for which the others wait") {
    // A stream that goes on after a give-up reads a window while its owner's stream writes there.
    // Nobody uses what it reads.
    if (hvd_test::under_tsan) return;
    const outcome seen = with_failures("", [](world_type& world) {
        hvd::pin_device(world);
        const tensor<float> x{1};
        {
            gpu_communicator gpus(world, {.destructor_deadline = 10s});
            gpus.allreduce(x.view(), hvd::sum);
            if (world.rank() != 2)
                check_has(text_of<hvd::peer_error>([&] { gpus.allreduce(x.view(), hvd::sum); }),
                          "has left the communicator");
        }
    });
    CHECK(seen.done == 3);
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("every call of CUDA's that a small call makes, failing") {
    // A stream that goes on after a give-up reads a window while its owner's stream writes there.
    // Nobody uses what it reads.
    if (hvd_test::under_tsan) return;
    for (const char* function : {"cuStreamWriteValue32", "cuStreamWaitValue32", "cudaMemcpyAsync",
                                 "launch_reduction", "cudaEventRecord"}) {
        INFO(std::string(function));
        const outcome seen = with_failures(function, [&](world_type& world) {
            hvd::pin_device(world);
            const tensor<float> x{1, 2};
            gpu_communicator gpus(world, patient);
            gpus.allreduce(x.view(), hvd::sum);
            world.barrier();
            if (world.rank() == 1) emulation::fail(function, 2, 3);
            world.barrier();
            for (int i = 0; i < 3; ++i) gpus.allreduce(x.view(), hvd::sum);
        });
        CHECK(seen.failed == 1);
        CHECK(seen.told == 2);
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

TEST_CASE("without the driver's calls, and where ranks share a GPU, ranks meet on the host") {
    const auto run = [](bool pinned, int words = 0) {
        hvd::run_threads(3, [&](world_type& world) {
            if (pinned) hvd::pin_device(world);
            gpu_communicator gpus(world, {.deadline = 20s});
            check_works(gpus);
        });
        CHECK(emulation::calls_of("cuStreamWriteValue32") == words);
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    };
    run(false);
    emulation::answer("cudaGetDriverEntryPointByVersion", 0);
    run(true);
    for (const char* function : {"cudaHostRegister", "cudaGetDriverEntryPointByVersion"}) {
        INFO(std::string(function));
        emulation::fail(function, 1, 3);
        run(true);
    }
    for (const char* function : {"cuStreamWriteValue32", "cuStreamWaitValue32"}) {
        INFO(std::string(function));
        emulation::fail(function, 2, 3);  // in the trial
        run(true, 3);
    }
}

}  // namespace ipc_signals_tests
