// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// CUDA IPC between ranks that are threads: its movements, its reductions, and its errors when it is
// not possible.

#include <atomic>
#include <bit>
#include <complex>
#include <memory>
#include <string>
#include <thread>

#include "ipc_checks.hpp"
#include "support.hpp"

namespace cuda_ipc_tests {

using namespace device_test;
using namespace ipc_test;

namespace {

using world_type = hvd::communicator<hvd::threads>;

constexpr place everywhere[] = {place::plain, place::arena, place::mixed};

// Windows have 4 KiB, so that small tensors make many chunks.
template <class F>
void on_ranks(F f, int least = 1,
              const hvd::communicator_options& options = {.deadline = 20s,
                                                          .device_window_bytes = 4096}) {
    for (int ranks = least; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks, [&](world_type& world) {
            gpu_communicator gpus(world, options);
            f(gpus);
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

// Calls f for each check, with the place in which it was made.
template <class F>
void everywhere_on_ranks(std::initializer_list<std::size_t> counts, F f,
                         std::size_t window = 4096) {
    on_ranks(
        [&](auto& gpus) {
            for (const place where : everywhere)
                for (const std::size_t count : counts)
                    f(gpus, where, count, [&](bool right, const char* what) {
                        CHECK_MESSAGE(right, what, " of ", count, " on rank ", gpus.rank(), " of ",
                                      gpus.size(), ", place ", int(where));
                    });
        },
        1, {.deadline = 20s, .device_window_bytes = window});
}

}  // namespace

TEST_CASE("reductions around the borders of chunks and slices") {
    everywhere_on_ranks({0, 1, 33, 1023, 1024, 1025, 5000},
                        [](auto& gpus, place where, std::size_t count, auto&& report) {
                            check_reduction<float>(gpus, where, count, hvd::sum, report);
                        });
}

TEST_CASE("every operation of every element type") {
    everywhere_on_ranks({777}, [](auto& gpus, place where, std::size_t count, auto&& report) {
        if (where == place::mixed) return;
        check_operations<float>(gpus, where, count, report);
        check_operations<double>(gpus, where, count, report);
        check_operations<hvd::float16>(gpus, where, count, report);
        check_operations<hvd::bfloat16>(gpus, where, count, report);
        check_operations<std::int8_t>(gpus, where, count, report);
        check_operations<std::uint16_t>(gpus, where, count, report);
        check_operations<std::int32_t>(gpus, where, count, report);
        check_operations<std::int64_t>(gpus, where, count, report);
        check_operations<std::uint64_t>(gpus, where, count, report);
    });
}

TEST_CASE("elements that are reduced as others are: complex numbers, bool, bytes") {
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

TEST_CASE("movements around the borders of chunks") {
    everywhere_on_ranks({0, 1, 33, 1023, 1025, 3000},
                        [](auto& gpus, place where, std::size_t count, auto&& report) {
                            check_movements<std::int32_t>(gpus, where, count, true, report);
                            check_movements<std::int16_t>(gpus, where, count, false, report);
                            check_uneven_alltoall<double>(gpus, where, count, report);
                        });
}

TEST_CASE("small calls, whose ranks reduce by themselves, beside others in one call") {
    everywhere_on_ranks(
        {0, 1, 33, 1023, 1400},
        [](auto& gpus, place where, std::size_t count, auto&& report) {
            check_reduction<float>(gpus, where, count, hvd::average, report, 0.5, 3);
            check_reduction<std::int16_t>(gpus, where, count, hvd::max, report);
            check_movements<std::int32_t>(gpus, where, count, true, report);
            check_movements<std::int16_t>(gpus, where, count, false, report);
            check_uneven_alltoall<double>(gpus, where, count, report);
            memory m(gpus, where, 3 * 8192);
            const auto x = m.tensor(values_of<float>(gpus.rank(), 10)),
                       y = m.tensor(values_of<float>(gpus.rank(), 2 * count));
            gpus.allreduce(hvd::fuse(x, y), hvd::sum);
            report(same_bytes(x, reduced<float>(hvd::sum, gpus.size(), 10)) &&
                       same_bytes(y, reduced<float>(hvd::sum, gpus.size(), 2 * count)),
                   "allreduce of two tensors");
        },
        std::size_t(1) << 18);
}

TEST_CASE("a small call meets the others once, and a large one twice") {
    for (int ranks = 2; ranks <= 4; ++ranks)
        hvd::run_threads(ranks, [](world_type& world) {
            gpu_communicator gpus(world, {.deadline = 20s});
            const std::size_t bytes = std::size_t(1) << 20;
            hvd::device_arena arena(gpus, 3 * bytes);
            const auto near = arena.tensor<float>(hvd::shape(1000)),
                       large = arena.tensor<float>(hvd::shape(bytes / 2));
            const tensor<float> x(std::vector<float>(1000)), all(std::vector<float>(4000));
            const auto gathered = hvd::device_view(all.data(), 1000 * std::size_t(gpus.size()));
            // A rank records an event at each meeting, and for other ends that all calls have.
            const auto events = [&](auto call) {
                world.barrier();
                const int before = emulation::calls_of("cudaEventRecord");
                world.barrier();
                call();
                world.barrier();
                return (emulation::calls_of("cudaEventRecord") - before) / gpus.size();
            };
            const int one = events([&] { gpus.barrier(); });
            CHECK(events([&] { gpus.allreduce(x.view(), hvd::sum); }) == one);
            CHECK(events([&] { gpus.allreduce(near, hvd::sum); }) == one);
            CHECK(events([&] { gpus.reduce(near, hvd::into(x.view()), hvd::sum); }) == one);
            CHECK(events([&] { gpus.allgather(x.view(), hvd::into(gathered)); }) == one);
            CHECK(events([&] { gpus.broadcast(x.view()); }) == one);
            CHECK(events([&] { gpus.allreduce(large, hvd::sum); }) == one + 1);
        });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("a rank's own part and its own slice do not pass the window") {
    for (int ranks = 2; ranks <= 4; ++ranks)
        hvd::run_threads(ranks, [](world_type& world) {
            gpu_communicator gpus(world, {.deadline = 20s, .device_window_bytes = 65536});
            const int n = gpus.size(), r = gpus.rank();
            const std::size_t count = 3000 * std::size_t(n);
            const tensor<int> x(std::vector<int>(count, r)), y(std::vector<int>(count, r));
            const auto copies = [&](auto call) {
                world.barrier();
                const int before = emulation::calls_of("cudaMemcpyAsync");
                world.barrier();
                call();
                world.barrier();
                return emulation::calls_of("cudaMemcpyAsync") - before;
            };
            // Each rank copies the parts for others in, and takes theirs.
            CHECK(copies([&] { gpus.alltoall(x.view(), hvd::into(x.view())); }) == n * 2 * (n - 1));
            // The slices before and after its own go in and out.
            CHECK(copies([&] { gpus.allreduce(y.view(), hvd::sum); }) == 2 * (2 * n - 2));
            std::vector<int> received;
            for (int p = 0; p < n; ++p) received.insert(received.end(), 3000, p);
            CHECK(x.values() == received);
            CHECK(y.values() == std::vector<int>(count, n * (n - 1) / 2));
        });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("small calls one after another, not one of which is waited for") {
    on_ranks(
        [](auto& gpus) {
            constexpr int calls = 60;
            std::vector<std::unique_ptr<tensor<int>>> tensors;
            std::vector<hvd::device_request> pending;
            for (int i = 0; i < calls; ++i)
                tensors.push_back(
                    std::make_unique<tensor<int>>(std::vector<int>(700, i * (gpus.rank() + 1))));
            for (const auto& x : tensors)
                pending.push_back(gpus.allreduce_async(x->view(), hvd::sum));
            for (auto& p : pending) p.wait();
            const int n = gpus.size();
            for (int i = 0; i < calls; ++i)
                CHECK(tensors[std::size_t(i)]->values() ==
                      std::vector<int>(700, i * n * (n + 1) / 2));
        },
        1, {.deadline = 20s});
}

TEST_CASE("tensors of an arena that are not aligned alike") {
    on_ranks([](auto& gpus) {
        const std::size_t count = 1000, shift = std::size_t(gpus.rank());
        memory m(gpus, place::arena, 3 * 4096);
        const auto x = m.tensor(values_of<std::int16_t>(gpus.rank(), count), 0, shift);
        const auto y = m.tensor(std::vector<std::int16_t>(count), 1, 2 * shift);
        gpus.allreduce(x, y, hvd::sum);
        CHECK(same_bytes(y, reduced<std::int16_t>(hvd::sum, gpus.size(), count)));
    });
}

TEST_CASE("several tensors in one call meet once") {
    on_ranks([](auto& gpus) {
        if (gpus.size() == 1) return;
        const int r = gpus.rank();
        std::vector<std::unique_ptr<tensor<float>>> tensors;
        std::vector<hvd::tensor_view<float, hvd::device>> views;
        for (int t = 0; t < 20; ++t)
            views.push_back(tensors
                                .emplace_back(std::make_unique<tensor<float>>(
                                    numbers<float>(3 + std::size_t(t), r)))
                                ->view());
        gpus.barrier();
        const int before = emulation::calls_of("cudaStreamWaitEvent");
        gpus.barrier();
        gpus.allreduce(hvd::fuse(views), hvd::sum);
        gpus.barrier();
        const int n = gpus.size(), waits = emulation::calls_of("cudaStreamWaitEvent") - before;
        CHECK(waits <=
              // barriers, ready, done, the end of the call before, and the default streams
              n * (5 * (n - 1) + 4 + 3));
        for (std::size_t t = 0; t < tensors.size(); ++t)
            CHECK(tensors[t]->values()[2] == float(n * (n + 1)));
    });
}

TEST_CASE("calls on one stream after another, begun before the one before is complete") {
    on_ranks([](auto& gpus) {
        cudaStream_t streams[3]{};
        for (cudaStream_t& s : streams) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
        {
            std::vector<std::unique_ptr<tensor<float>>> tensors;
            std::vector<hvd::device_request> pending;
            for (int i = 0; i < 9; ++i) {
                const auto& x = tensors.emplace_back(std::make_unique<tensor<float>>(
                    std::vector<float>(3000, float(i + gpus.rank()))));
                cudaStreamSynchronize(0);  // these streams do not wait for the copy
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

TEST_CASE("a plan leaves an arena's tensors where they are, packs small others, and runs again") {
    on_ranks([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        hvd::device_arena arena(gpus, 8192);
        const auto a = arena.tensor<float>(hvd::shape(30)),
                   b = arena.tensor<float>(hvd::shape(1000));
        cudaMemcpy(a.data(), numbers<float>(30, r).data(), 120, cudaMemcpyHostToDevice);
        cudaMemcpy(b.data(), numbers<float>(1000, r).data(), 4000, cudaMemcpyHostToDevice);
        auto alone = gpus.plan_allreduce(hvd::fuse(a, b), hvd::sum);
        CHECK(alone.packed_bytes() == 0);
        gpus.barrier();
        const int copies = emulation::calls_of("cudaMemcpyAsync"),
                  launches = emulation::calls_of("launch_reduction");
        gpus.barrier();
        alone.run();
        gpus.barrier();
        CHECK(emulation::calls_of("cudaMemcpyAsync") == copies);
        if (n > 1)
            CHECK(emulation::calls_of("launch_reduction") - launches ==
                  n);  // tensors side by side take one call
        gpus.barrier();
        const tensor<float> c(numbers<float>(40, r)), d(numbers<float>(50, r));
        const tensor<hvd::bfloat16> e(numbers<hvd::bfloat16>(60, r)),
            f(numbers<hvd::bfloat16>(70, r));
        auto mixed =
            gpus.plan_allreduce(hvd::fuse(a, c.view(), e.view(), d.view(), f.view()), hvd::average);
        if (n > 1) CHECK(mixed.packed_bytes() > 0);
        mixed.run();
        mixed.run();
        const float mean = 0.5f * float(n + 1);
        CHECK(d.values()[7] == 7 * mean);
        CHECK(float(f.values()[2]) == 2 * mean);
        float got[3];
        cudaMemcpy(got, a.data(), sizeof got, cudaMemcpyDeviceToHost);
        CHECK(got[2] == float(n * (n + 1)));
        auto half = gpus.plan_allreduce(hvd::fuse(c.view(), d.view()), hvd::sum, {},
                                        hvd::cast<hvd::bfloat16>{});
        half.run();
        CHECK(c.values()[2] == 2 * mean * float(n));
    });
}

TEST_CASE("a tensor that overhangs an arena goes through the window") {
    on_ranks(
        [](auto& gpus) {
            const int n = gpus.size();
            hvd::device_arena arena(gpus, 4096);
            const auto inside = arena.tensor<float>(hvd::shape(1024));
            const hvd::tensor_view<float, hvd::device> over(inside.data() + 896, {256});
            cudaMemcpy(over.data(), numbers<float>(256, gpus.rank()).data(), 1024,
                       cudaMemcpyHostToDevice);
            gpus.barrier();
            const int before = emulation::calls_of("cudaMemcpyAsync");
            gpus.barrier();
            gpus.allreduce(hvd::device_view(over.data(), 128), hvd::sum);
            gpus.barrier();
            CHECK(emulation::calls_of("cudaMemcpyAsync") == before);
            gpus.barrier();
            gpus.allreduce(over, hvd::sum);
            gpus.barrier();
            CHECK(emulation::calls_of("cudaMemcpyAsync") > before);
            float got[256];
            cudaMemcpy(got, over.data(), sizeof got, cudaMemcpyDeviceToHost);
            CHECK(got[3] == float(3 * n * (n + 1) / 2 * n));  // it was summed twice
            CHECK(got[130] == float(130 % 11 * n * (n + 1) / 2));
        },
        2);
}

TEST_CASE("each rank copies its own part first, and then that of the next rank") {
    hvd::run_threads(3, [](world_type& world) {
        constexpr int root = 1;
        constexpr std::size_t count = 100;
        std::vector<int> got(3 * count);
        gpu_communicator gpus(world, {.deadline = 20s, .device_window_bytes = 4096});
        hvd::device_arena arena(gpus, 4096);
        const auto x = arena.tensor<int>(hvd::shape(count));
        const auto all = arena.tensor<int>(hvd::shape(3 * count));
        const std::vector<int> own(count, 7 + gpus.rank());
        cudaMemcpy(x.data(), own.data(), 4 * count, cudaMemcpyHostToDevice);
        cudaMemcpy(all.data(), got.data(), 12 * count, cudaMemcpyHostToDevice);
        // The last copy fails, so the output shows which two were before it.
        if (gpus.rank() == root) emulation::fail("cudaMemcpyAsync", 3, cudaErrorUnknown);
        const auto gather = [&] { gpus.gather(x, hvd::into(all), hvd::root{root}); };
        if (gpus.rank() == root) CHECK_THROWS_AS(gather(), hvd::cuda_error);
        else CHECK_THROWS_AS(gather(), hvd::peer_error);
        cudaStreamSynchronize(gpus.stream());
        cudaMemcpy(got.data(), all.data(), 12 * count, cudaMemcpyDeviceToHost);
        if (gpus.rank() == root)
            CHECK(std::vector{got[0], got[count], got[2 * count]} == std::vector{0, 8, 9});
    });
    emulation::reset();
}

TEST_CASE("a rank that is ahead does not move the point for which the others wait") {
    hvd::run_threads(4, [](world_type& world) {
        gpu_communicator gpus(world, {.deadline = 20s});
        cudaStream_t held{};
        cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking);
        const tensor<float> x{1}, y{1};
        cudaStreamSynchronize(nullptr);  // the stream does not wait for the copies
        for (int i = 0; i < 100; ++i) {
            std::atomic<bool> waits = gpus.rank() == 0;
            emulation::enqueue(held, [&waits] {
                while (waits) std::this_thread::sleep_for(20us);
            });
            auto first = gpus.barrier_async();
            // Rank 0 is at once in the second call, whose work comes behind a stream that is held.
            if (gpus.rank() != 0) first.wait();
            auto second = gpus.allreduce_async(y.view(), hvd::max, {.stream = held});
            waits = false;
            first.wait();
            second.wait();
        }
        cudaStreamDestroy(held);
    });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a rank that is alone has no window and asks nobody") {
    hvd::run_threads(1, [](world_type& world) {
        emulation::reset();
        gpu_communicator gpus(world);
        gpus.barrier();
        CHECK(emulation::calls_of("cudaMalloc") == 0);
        CHECK(emulation::calls_of("cudaEventRecord") ==
              2);  // the request's event, and the default streams'
        const tensor<float> x{1, 3};
        gpus.allreduce(x.view(), hvd::average);
        CHECK(emulation::calls_of("launch_reduction") == 0);
        gpus.allreduce(x.view(), hvd::max, {.prescale = 2, .postscale = 0.25});
        CHECK(x.values() == std::vector<float>{0.5, 1.5});
        CHECK(emulation::calls_of("launch_reduction") == 1);
        const auto nan = std::bit_cast<float>(0x7fc12345u);  // it is copied as it is
        const tensor<float> y{nan}, z{0};
        gpus.allreduce(y.view(), z.view(), hvd::sum);
        CHECK(std::bit_cast<std::uint32_t>(z.values()[0]) == 0x7fc12345u);
        CHECK(gpus.split(3).size() == 1);
        CHECK(!gpus.split(-1));
    });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("communicators are split, and used side by side") {
    on_ranks([](auto& gpus) {
        const int r = gpus.rank();
        auto half = gpus.split(r % 2, -r);
        const tensor<int> x{1}, y{r};
        half.allreduce(x.view(), hvd::sum);
        gpus.allreduce(y.view(), hvd::sum);
        CHECK(x.values()[0] == half.size());
        CHECK(y.values()[0] == gpus.size() * (gpus.size() - 1) / 2);
        auto first = gpus.split(r == 0 ? 0 : -1);
        CHECK(bool(first) == (r == 0));
        auto moved = std::move(half);
        CHECK(!half);
        CHECK(half.rank() == -1);
        CHECK_THROWS_AS(half.barrier(), hvd::usage_error);
        moved.barrier();
    });
}

TEST_CASE("ranks with a GPU each") {
    hvd::run_threads(4, [](world_type& world) {
        hvd::pin_device(world);
        gpu_communicator gpus(world);
        CHECK(gpus.device() == world.rank());
        const tensor<float> x(numbers<float>(1000, world.rank()));
        gpus.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[3] == 30);
    });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("CUDA IPC for one kind of collective, the host for others") {
    for (int ranks = 1; ranks <= 3; ++ranks)
        hvd::run_threads(ranks, [](world_type& world) {
            using staged = hvd::staged<hvd::threads>;
            hvd::communicator<hvd::per_operation<hvd::cuda_ipc, staged, hvd::cuda_ipc>> mixed(
                world);
            const tensor<float> x(std::vector<float>(100, 1));
            const tensor<float> all(std::vector<float>(100 * std::size_t(mixed.size())));
            mixed.plan_allreduce(x.view(), hvd::sum).run();
            mixed.allgather(x.view(), hvd::into(all.view()));
            mixed.broadcast(all.view());
            CHECK(all.values().back() == float(mixed.size()));
        });
    CHECK(emulation::live_objects() == 0);
}

}  // namespace cuda_ipc_tests
