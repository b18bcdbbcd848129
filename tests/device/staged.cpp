// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Staged tensors have the bits of the host's reductions, for all operations and element types.
// Ranks that disagree or leave are named.

#include <complex>
#include <memory>

#include "failures.hpp"
#include "reference.hpp"

namespace staged_tests {

using namespace device_test;

namespace {

using gpu_communicator = hvd::communicator<hvd::staged<hvd::threads>>;

// Runs f(gpus) on threads. They share a GPU, or each has one.
template <class F>
void on_ranks(F f, int least = 1, bool pinned = false) {
    for (int ranks = least; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks, [&](world_type& world) {
            if (pinned) CHECK(hvd::pin_device(world) == world.rank());
            gpu_communicator gpus(world, {.timeout = 20s});
            f(gpus);
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

// Calls f for each count, with a function that takes the results.
template <class F>
void for_counts(std::initializer_list<std::size_t> counts, F f, bool pinned = false) {
    on_ranks(
        [&](auto& gpus) {
            for (const std::size_t count : counts)
                f(gpus, count, [&](bool right, const char* what) {
                    CHECK_MESSAGE(right, what, " of ", count, " on rank ", gpus.rank(), " of ",
                                  gpus.size());
                });
        },
        1, pinned);
}

void has(const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
}

void check_works(gpu_communicator& gpus) {
    const tensor<float> x{1, 2};
    gpus.allreduce(x.view(), hvd::sum);
    CHECK(x.values()[1] == float(2 * gpus.size()));
}

}  // namespace

TEST_CASE("every operation of every element type") {
    for_counts({777}, [](auto& gpus, std::size_t count, auto&& report) {
        reference::check_operations<float>(gpus, count, report);
        reference::check_operations<double>(gpus, count, report);
        reference::check_operations<hvd::float16>(gpus, count, report);
        reference::check_operations<hvd::bfloat16>(gpus, count, report);
        reference::check_operations<std::int8_t>(gpus, count, report);
        reference::check_operations<std::uint16_t>(gpus, count, report);
        reference::check_operations<std::int32_t>(gpus, count, report);
        reference::check_operations<std::int64_t>(gpus, count, report);
        reference::check_operations<std::uint64_t>(gpus, count, report);
    });
}

TEST_CASE("complex numbers, bool and bytes") {
    on_ranks([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        const tensor<std::complex<float>> z{{float(r), 1}, {2, float(-r)}};
        gpus.allreduce(z.view(), hvd::average);
        CHECK(z.values()[0] == std::complex<float>(float(n - 1) / 2, 1));
        const tensor<std::uint8_t> any{r == 0, 0, 1}, all{r == 0, 0, 1};
        const auto as_bools = [](const auto& x) {
            return hvd::device_view(reinterpret_cast<bool*>(x.data()), 3);
        };
        gpus.allreduce(as_bools(any), hvd::logical_or);
        gpus.allreduce(as_bools(all), hvd::min);
        CHECK(any.values() == std::vector<std::uint8_t>{1, 0, 1});
        CHECK(all.values() == std::vector<std::uint8_t>{n == 1, 0, 1});
        const tensor<std::byte> bits{std::byte(1 << r)};
        gpus.allreduce(bits.view(), hvd::bit_or);
        CHECK(bits.values()[0] == std::byte((1 << n) - 1));
    });
}

TEST_CASE("movements of equal and different parts, on ranks with a GPU each") {
    for_counts(
        {0, 1, 33, 1025},
        [](auto& gpus, std::size_t count, auto&& report) {
            reference::check_movements<std::int32_t>(gpus, count, true, report);
            reference::check_movements<std::int16_t>(gpus, count, false, report);
            reference::check_uneven_alltoall<double>(gpus, count, report);
            reference::check_uneven_alltoall_in_place<float>(gpus, count, report);
        },
        true);
}

TEST_CASE("reductions and movements around the borders of chunks") {
    const std::size_t chunk = hvd::detail::tuning::staged_chunk_bytes / sizeof(float);
    hvd::run_threads(2, [&](world_type& world) {
        gpu_communicator gpus(world, {.timeout = 60s});
        const auto report = [](bool right, const char* what) { CHECK_MESSAGE(right, what); };
        for (const std::size_t count : {chunk, chunk + 1})
            reference::check_reduction<float>(gpus, count, hvd::average, report);
        reference::check_movements<float>(gpus, chunk / 2 + 1, true, report);
        reference::check_uneven_alltoall<float>(gpus, chunk / 2 + 1, report);
        reference::check_uneven_alltoall_in_place<float>(gpus, chunk / 4 + 1, report);
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("an alltoall goes over its input only where it gives each rank as much as it takes") {
    on_ranks(
        [](auto& gpus) {
            const reference::uneven_exchange<float> x(
                gpus.size(), gpus.rank(), [](int from, int to) { return from < to ? 2u : 1u; });
            const tensor<float> both(std::vector<float>(2 * std::size_t(gpus.size())));
            has(text_of<hvd::usage_error>([&] {
                    gpus.alltoall(hvd::device_view(both.data(), x.given.size()),
                                  hvd::into(hvd::device_view(both.data(), x.expected.size())),
                                  x.options());
                }),
                "they must be apart, or the same with the same counts");
            check_works(gpus);
        },
        2);
}

// Later chunks take the memory of earlier ones, and larger calls take larger memory.
TEST_CASE(
    "copies to the device that are slow have the right bytes, in many chunks and larger calls") {
    const std::size_t chunk = hvd::detail::tuning::staged_chunk_bytes / sizeof(float);
    hvd::run_threads(2, [&](world_type& world) {
        gpu_communicator gpus(world, {.timeout = 60s});
        const auto values = [&](std::size_t count, int first) {
            std::vector<float> all(count);
            for (std::size_t i = 0; i < count; ++i) all[i] = float(first + int(i * 64 / chunk));
            return all;
        };
        std::vector<std::unique_ptr<tensor<float>>> tensors;
        const std::size_t counts[] = {10, 1000, chunk / 8, 4 * chunk + chunk / 2};
        for (const std::size_t count : counts)
            tensors.push_back(std::make_unique<tensor<float>>(values(count, world.rank())));
        cudaDeviceSynchronize();
        emulation::slow_down(30);
        for (const auto& x : tensors) gpus.allreduce(x->view(), hvd::max);
        cudaDeviceSynchronize();
        emulation::slow_down(0);
        for (const auto& x : tensors) CHECK(x->values() == values(x->values().size(), 1));
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("calls on several streams, begun before the one before is complete") {
    on_ranks([](auto& gpus) {
        cudaStream_t streams[3]{};
        for (cudaStream_t& s : streams) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
        {
            std::vector<std::unique_ptr<tensor<float>>> tensors;
            std::vector<hvd::device_request> pending;
            for (int i = 0; i < 9; ++i) {
                const auto& x = tensors.emplace_back(std::make_unique<tensor<float>>(
                    std::vector<float>(3000, float(i + gpus.rank()))));
                cudaStreamSynchronize(nullptr);  // these streams do not wait for the copy
                pending.push_back(
                    gpus.allreduce_async(x->view(), hvd::max, {.stream = streams[i % 3]}));
            }
            for (auto& p : pending) p.wait();
            for (int i = 0; i < 9; ++i)
                CHECK(tensors[std::size_t(i)]->values() ==
                      std::vector<float>(3000, float(i + gpus.size() - 1)));
        }
        for (const cudaStream_t s : streams) cudaStreamDestroy(s);
    });
}

TEST_CASE("a larger call on another stream, while copies to the device are slow") {
    on_ranks([](auto& gpus) {
        const std::size_t counts[] = {10, 1000, 100'000};
        cudaStream_t streams[std::size(counts)]{};
        std::vector<std::unique_ptr<tensor<float>>> tensors;
        for (std::size_t i = 0; i < std::size(counts); ++i) {
            cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking);
            tensors.push_back(
                std::make_unique<tensor<float>>(std::vector<float>(counts[i], float(gpus.rank()))));
        }
        cudaDeviceSynchronize();
        emulation::slow_down(20);
        std::vector<hvd::device_request> pending;
        for (std::size_t i = 0; i < std::size(counts); ++i)
            pending.push_back(
                gpus.allreduce_async(tensors[i]->view(), hvd::max, {.stream = streams[i]}));
        for (auto& p : pending) p.wait();
        for (std::size_t i = 0; i < std::size(counts); ++i) {
            CHECK(tensors[i]->values() == std::vector<float>(counts[i], float(gpus.size() - 1)));
            cudaStreamDestroy(streams[i]);
        }
    });
}

TEST_CASE("a tensor of more chunks than there are, while copies to the device are slow") {
    const std::size_t count = hvd::detail::tuning::staged_chunk_bytes / sizeof(float) * 7 / 2;
    hvd::run_threads(2, [&](world_type& world) {
        gpu_communicator gpus(world, {.timeout = 60s});
        std::vector<float> mine(count), right(count);
        for (std::size_t i = 0; i < count; ++i) {
            mine[i] = float((i / 1000 + std::size_t(gpus.rank())) % 4096);
            right[i] = std::max(float(i / 1000 % 4096), float((i / 1000 + 1) % 4096));
        }
        const tensor<float> x(mine);
        emulation::slow_down(50);
        gpus.allreduce(x.view(), hvd::max);
        CHECK(x.values() == right);
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("ranks that disagree are told so, by name, and the communicator works on") {
    on_ranks(
        [](auto& gpus) {
            const bool odd = gpus.rank() == 1;
            const tensor<float> two{1, 2}, three{1, 2, 3};
            const tensor<float> all(std::vector<float>(3 * std::size_t(gpus.size())));
            const tensor<int> integers{1, 2};
            has(text_of<hvd::mismatch_error>(
                    [&] { gpus.allreduce(odd ? three.view() : two.view(), hvd::sum); }),
                "rank 0: 2, rank 1: 3");
            has(text_of<hvd::mismatch_error>([&] {
                    gpus.broadcast(odd ? three.view() : two.view(), hvd::root{0},
                                   {.name = "weights"});
                }),
                "broadcast 'weights'");
            CHECK_THROWS_AS(gpus.broadcast(two.view(), hvd::root{odd ? 1 : 0}),
                            hvd::mismatch_error);
            CHECK_THROWS_AS(odd ? gpus.barrier() : gpus.broadcast(two.view()), hvd::mismatch_error);
            CHECK_THROWS_AS(
                odd ? gpus.allreduce(two.view(), hvd::sum) : gpus.allreduce(two.view(), hvd::max),
                hvd::mismatch_error);
            CHECK_THROWS_AS(odd ? gpus.allreduce(integers.view(), hvd::sum)
                                : gpus.allreduce(two.view(), hvd::sum),
                            hvd::mismatch_error);
            CHECK_THROWS_AS(gpus.allreduce(two.view(), hvd::sum, {.prescale = odd ? 2.0 : 1.0}),
                            hvd::mismatch_error);
            const std::size_t ranks = std::size_t(gpus.size());
            CHECK_THROWS_AS(
                gpus.allgather(odd ? three.view() : two.view(),
                               hvd::into(hvd::device_view(all.data(), (odd ? 3 : 2) * ranks))),
                hvd::mismatch_error);
            check_works(gpus);
        },
        2);
}

TEST_CASE("a call where the others make a plan is told, and the communicator works on") {
    on_ranks(
        [](auto& gpus) {
            const tensor<float> x{1, 2};
            has(text_of<hvd::mismatch_error>([&] {
                    if (gpus.rank() == 1) gpus.allreduce(x.view(), hvd::sum);
                    else (void)gpus.plan_allreduce(x.view(), hvd::sum);
                }),
                "rank 1: allreduce");
            check_works(gpus);
        },
        2);
}

TEST_CASE("a rank that leaves before, between and after the runs of a plan") {
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

TEST_CASE("every single call of a staged allreduce of two chunks, failing") {
    fail_each(
        {"cudaHostAlloc", "cudaEventRecord", "cudaStreamWaitEvent", "cudaMemcpyAsync"},
        [](world_type& world, const hvd::communicator_options& options) {
            const std::size_t chunk = hvd::detail::tuning::staged_chunk_bytes;
            const tensor<float> x(std::vector<float>(chunk / sizeof(float) + 1, 1));
            gpu_communicator gpus(world, options);
            gpus.allreduce(x.view(), hvd::sum);
        },
        true, patient);
}

}  // namespace staged_tests
