// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Every collective of communicator<nccl> on the emulation. Ranks are threads that begin with
// hvd::threads.

#include <atomic>
#include <cmath>

#include "support.hpp"

namespace nccl_tests {

using namespace device_test;

TEST_CASE("a sum, a mean and scales") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank(), sum = n * (n - 1) / 2;
        const tensor<int> i{r, 2 * r};
        gpus.allreduce(i.view(), hvd::sum);
        CHECK(i.values() == std::vector<int>{sum, 2 * sum});
        const tensor<double> x{double(n * r)}, y{0.0};
        gpus.allreduce(x.view(), hvd::into(y.view()), hvd::average, {.prescale = 2});
        CHECK(y.values()[0] == doctest::Approx(2.0 * sum));
        const tensor<hvd::bfloat16> h{hvd::bfloat16(float(r + 1))};
        gpus.allreduce(h.view(), hvd::max);
        CHECK(float(h.values()[0]) == float(n));
        gpus.allreduce(h.view(), hvd::sum, {.postscale = 0.5});
        CHECK(float(h.values()[0]) == float(n * n) / 2);
    });
}

TEST_CASE("everything that moves") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        const tensor<float> b{float(r)};
        gpus.broadcast(b.view(), hvd::root{n - 1});
        CHECK(b.values()[0] == float(n - 1));

        // NCCL has no such type, so it is moved as bytes
        const tensor<short> mine{short(r), short(10 * r)};
        const tensor<short> all(std::vector<short>(std::size_t(2 * n)));
        gpus.allgather(mine.view(), hvd::into(all.view()));
        for (int p = 0; p < n; ++p) CHECK(all.values()[std::size_t(2 * p + 1)] == 10 * p);

        std::vector<int> parts;
        for (int p = 0; p < n; ++p) parts.push_back(10 * r + p);
        const tensor<int> out(parts), in(std::vector<int>(parts.size())), part{0};
        gpus.alltoall(out.view(), hvd::into(in.view()));
        for (int p = 0; p < n; ++p) CHECK(in.values()[std::size_t(p)] == 10 * p + r);
        gpus.scatter(out.view(), hvd::into(part.view()), hvd::root{0});
        CHECK(part.values()[0] == r);
        gpus.gather(part.view(), hvd::into(in.view()), hvd::root{n - 1});
        if (r == n - 1)
            for (int p = 0; p < n; ++p) CHECK(in.values()[std::size_t(p)] == p);
    });
}

TEST_CASE("parts of different sizes") {
    on_gpus([](auto& gpus) {
        std::vector<std::size_t> counts;
        std::size_t total = 0;
        for (int p = 0; p < gpus.size(); total += std::size_t(p++))
            counts.push_back(std::size_t(p));
        const std::size_t own = counts[std::size_t(gpus.rank())];
        const tensor<int> mine(std::vector<int>(own, gpus.rank())),
            all(std::vector<int>(total, -1));
        gpus.allgather(mine.view(), hvd::into(all.view()), {.counts = counts});
        std::vector<int> expected;
        for (int p = 0; p < gpus.size(); ++p) expected.insert(expected.end(), std::size_t(p), p);
        CHECK(all.values() == expected);
        gpus.reduce_scatter(all.view(), hvd::sum, hvd::into(mine.view()), {.counts = counts});
        CHECK(mine.values() == std::vector<int>(own, gpus.rank() * gpus.size()));
    });
}

TEST_CASE("parts of different sizes, gathered, scattered and exchanged") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank(), last = n - 1;
        std::vector<std::size_t> counts, received(static_cast<std::size_t>(n), std::size_t(r));
        std::vector<int> expected;
        for (int p = 0; p < n; ++p) {
            counts.push_back(std::size_t(p));
            expected.insert(expected.end(), std::size_t(p), 10 * p);
        }
        const std::size_t own = std::size_t(r), total = expected.size();
        const tensor<int> mine(std::vector<int>(own, 10 * r)), all(std::vector<int>(total, -1)),
            back(std::vector<int>(own, -1));
        gpus.gather(mine.view(), hvd::into(all.view()), hvd::root{last}, {.counts = counts});
        CHECK(all.values() == (r == last ? expected : std::vector<int>(total, -1)));
        gpus.scatter(all.view(), hvd::into(back.view()), hvd::root{last}, {.counts = counts});
        CHECK(back.values() == std::vector<int>(own, 10 * r));

        // NCCL has no such type, so it is moved as bytes.
        std::vector<short> of_ranks(expected.begin(), expected.end());
        const tensor<short> own_short(std::vector<short>(own, short(10 * r))),
            all_short(std::vector<short>(total, -1)), back_short(std::vector<short>(own, -1));
        gpus.gather(own_short.view(), hvd::into(all_short.view()), hvd::root{last},
                    {.counts = counts});
        CHECK(all_short.values() == (r == last ? of_ranks : std::vector<short>(total, -1)));
        gpus.scatter(all_short.view(), hvd::into(back_short.view()), hvd::root{last},
                     {.counts = counts});
        CHECK(back_short.values() == std::vector<short>(own, short(10 * r)));
        gpus.allgather(own_short.view(), hvd::into(all_short.view()), {.counts = counts});
        CHECK(all_short.values() == of_ranks);

        // Each rank sends p elements to rank p; each element is 100 * sender + receiver.
        std::vector<int> out, in;
        for (int p = 0; p < n; ++p) {
            out.insert(out.end(), std::size_t(p), 100 * r + p);
            in.insert(in.end(), std::size_t(r), 100 * p + r);
        }
        const tensor<int> send(out), receive(std::vector<int>(in.size(), -1));
        gpus.alltoall(send.view(), hvd::into(receive.view()),
                      {.counts = counts, .receive_counts = received});
        CHECK(receive.values() == in);
        const tensor<short> send_short(std::vector<short>(out.begin(), out.end())),
            receive_short(std::vector<short>(in.size(), -1));
        gpus.alltoall(send_short.view(), hvd::into(receive_short.view()),
                      {.counts = counts, .receive_counts = received});
        CHECK(receive_short.values() == std::vector<short>(in.begin(), in.end()));
        CHECK_THROWS_AS(gpus.alltoall(send.view(), hvd::into(receive.view()), {.counts = counts}),
                        hvd::usage_error);
    });
}

TEST_CASE("a rank that would send itself another number than it expects is told both") {
    on_gpus([](auto& gpus) {
        std::vector<std::size_t> two(std::size_t(gpus.size()), 1), one = two;
        two[std::size_t(gpus.rank())] = 2;
        const tensor<int> in(std::vector<int>(two.size() + 1)), out(std::vector<int>(two.size()));
        try {
            gpus.alltoall(in.view(), hvd::into(out.view()), {.counts = two, .receive_counts = one});
            FAIL("it was taken");
        } catch (const hvd::usage_error& e) {
            CHECK(std::string(e.what()).find("sends 2 to itself by .counts, expects 1") !=
                  std::string::npos);
        }
        gpus.alltoall(out.view(), hvd::into(tensor<int>(out.values()).view()));
    });
}

TEST_CASE("a barrier") {
    on_gpus([](auto& gpus) {
        static int arrived;
        if (gpus.rank() == 0) __atomic_store_n(&arrived, 0, __ATOMIC_SEQ_CST);
        gpus.barrier();
        __atomic_fetch_add(&arrived, 1, __ATOMIC_SEQ_CST);
        gpus.barrier_async().wait();
        CHECK(__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) == gpus.size());
        gpus.barrier();
    });
}

TEST_CASE("16-bit floats are averaged and scaled without rounding the factor") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size();
        // Sums are exact here, so the mean of equal numbers is the number itself.
        std::vector<hvd::bfloat16> values;
        for (int i = 0; i < 256; ++i)
            values.push_back(hvd::bfloat16::from_bits(std::uint16_t(0x3f80 + i / 8 * 8)));
        const tensor<hvd::bfloat16> x(values), y(values);
        gpus.allreduce(x.view(), hvd::average);
        const auto got = x.values();
        for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i].bits() == values[i].bits());
        gpus.allreduce(y.view(), hvd::sum, {.prescale = 0.1, .postscale = 10.0 / n});
        for (std::size_t i = 0; i < got.size(); ++i)
            CHECK(y.values()[i].bits() == values[i].bits());
        const tensor<hvd::float16> z{hvd::float16(30000)},
            part{hvd::float16(0)};  // a sum of four is no float16
        gpus.allreduce(z.view(), hvd::sum, {.prescale = 1.0 / 3});
        CHECK(float(z.values()[0]) == doctest::Approx(10000.0 * n).epsilon(0.001));
        const tensor<hvd::float16> parts(
            std::vector<hvd::float16>(std::size_t(n), hvd::float16(3)));
        gpus.reduce_scatter(parts.view(), hvd::average, hvd::into(part.view()));
        CHECK(float(part.values()[0]) == 3);
        gpus.reduce(part.view(), hvd::into(part.view()), hvd::average, hvd::root{n - 1});
        CHECK(float(part.values()[0]) == 3);
    });
}

TEST_CASE("means of float16 whose sum is no float16") {
    on_gpus([](auto& gpus) {
        const auto n = std::size_t(gpus.size());
        const std::vector<hvd::float16> one{hvd::float16(40000)}, all(n, one[0]);
        const auto is = [](const auto& x, float expected) {
            for (const hvd::float16 v : x.values()) CHECK(float(v) == expected);
        };
        const tensor<hvd::float16> x(one), y(one), z(one), parts(all), part(one);
        gpus.allreduce(x.view(), hvd::average);
        is(x, 40000);
        gpus.allreduce(y.view(), hvd::average, {.prescale = 0x1p-20, .postscale = 0x1p19});
        is(y, 20000);
        gpus.reduce(z.view(), hvd::into(z.view()), hvd::average, hvd::root{0});
        is(z, 40000);
        gpus.reduce_scatter(parts.view(), hvd::average, hvd::into(part.view()));
        is(part, 40000);
    });
}

TEST_CASE("scales of float16 that no float16 is, before the sum") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size();
        for (const double scale : {0x1p-30, 0x1p30}) {
            const tensor<hvd::float16> x{hvd::float16(3)}, y{hvd::float16(3)};
            gpus.allreduce(x.view(), hvd::sum, {.prescale = scale, .postscale = 1.5 / scale});
            CHECK(float(x.values()[0]) == 4.5f * float(n));
            gpus.allreduce(y.view(), hvd::average, {.prescale = scale, .postscale = 1.5 / scale});
            CHECK(float(y.values()[0]) == 4.5f);
        }
    });
}

TEST_CASE("a factor that the type does not hold is refused, and the communicator works on") {
    on_gpus([](auto& gpus) {
        const tensor<float> x{1};
        const tensor<hvd::float16> h{hvd::float16(1)};
        const tensor<double> d{1};
        for (const double factor : {1e300, -1e40, 1e-60, std::nan("")}) {
            const auto refused = [&](const auto& view) {
                try {
                    gpus.allreduce(view, hvd::sum, {.postscale = factor});
                    FAIL("it was taken");
                } catch (const hvd::usage_error& e) {
                    CHECK_MESSAGE(std::string(e.what()).find("is out of the range in which") !=
                                      std::string::npos,
                                  e.what());
                }
            };
            refused(x.view());
            refused(h.view());
            if (std::isnan(factor)) refused(d.view());
        }
        gpus.allreduce(d.view(), hvd::sum, {.prescale = 1e300});
        CHECK(d.values()[0] == doctest::Approx(1e300 * gpus.size()));
        gpus.allreduce(x.view(), hvd::sum, {.prescale = 0});
        CHECK(x.values()[0] == 0);
    });
}

TEST_CASE("a mean is a sum to NCCL, and one launch") {
    on_gpus([](auto& gpus) {
        const auto n = std::size_t(gpus.size());
        const auto mean_of = [&](auto one) {
            using T = decltype(one);
            const std::vector<T> values(n, T(float(3 * gpus.rank())));
            const tensor<T> x(values), part(std::vector<T>{T(0)});
            gpus.allreduce(x.view(), hvd::average);
            for (const T v : x.values()) CHECK(float(v) == 1.5f * float(n - 1));
            gpus.reduce_scatter(x.view(), hvd::average, hvd::into(part.view()));
            CHECK(float(part.values()[0]) == 1.5f * float(n - 1));
        };
        mean_of(float{});
        mean_of(double{});
        mean_of(hvd::bfloat16{});
        gpus.barrier();
        CHECK(emulation::calls_of("ncclRedOpCreatePreMulSum") == 0);
        CHECK(emulation::calls_of("launch_tiles") == int(n == 1 ? 0 : 6 * n));
        gpus.barrier();
    });
}

TEST_CASE("scales that change at every call leave no operation behind in NCCL") {
    on_gpus([](auto& gpus) {
        for (int i = 0; i < 20; ++i) {
            const tensor<hvd::float16> x{hvd::float16(1)}, y{hvd::float16(1)};
            gpus.allreduce(hvd::fuse(x.view(), y.view()), hvd::sum,
                           {.prescale = 1 / double(1 << i % 10), .postscale = double(1 << i % 10)});
            CHECK(float(x.values()[0]) == float(gpus.size()));
            gpus.allreduce(y.view(), hvd::sum, {.prescale = 1 / double(2 << i % 10)});
        }
        gpus.barrier();
        // The calls of a group share one.
        CHECK(emulation::calls_of("ncclRedOpCreatePreMulSum") ==
              (gpus.size() == 1 ? 0 : 20 * gpus.size()));
        CHECK(emulation::calls_of("ncclRedOpDestroy") ==
              emulation::calls_of("ncclRedOpCreatePreMulSum"));
        gpus.barrier();
    });
}

TEST_CASE("many tensors are one group, and as many as NCCL takes") {
    for (int ranks = 2; ranks <= 4; ++ranks) {
        hvd::run_threads(ranks, [ranks](hvd::communicator<hvd::threads>& world) {
            hvd::communicator<hvd::nccl> gpus(world, {.timeout = 60s});
            for (const auto& [tensors, groups] :
                 {std::pair{161, 1}, {1024, 1}, {1025, 2}, {2500, 3}}) {
                const tensor<int> memory(std::vector<int>(std::size_t(tensors), 1));
                std::vector<hvd::tensor_view<int, hvd::device>> views;
                for (int i = 0; i < tensors; ++i)
                    views.push_back(hvd::device_view(memory.data() + i, 1));
                world.barrier();
                const int before = emulation::calls_of("ncclGroupEnd");
                world.barrier();
                gpus.allreduce(hvd::fuse(views), hvd::sum);
                CHECK(memory.values() == std::vector<int>(std::size_t(tensors), ranks));
                world.barrier();
                CHECK(emulation::calls_of("ncclGroupEnd") - before == groups * ranks);
            }
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

TEST_CASE("a group is cut by the operations of its calls, before the first that has no room") {
    using hvd::detail::collective, hvd::detail::end_of_group;
    constexpr std::size_t most = hvd::detail::tuning::nccl_operations;
    const auto several = [](std::size_t n, collective kind) {
        hvd::detail::collective_call call;
        call.entry.kind = kind;
        return std::vector(n, call);
    };
    const auto sums = several(2 * most + 1, collective::allreduce);
    CHECK(end_of_group(sums, 0, 4) == most);
    CHECK(end_of_group(sums, most, 4) == 2 * most);
    CHECK(end_of_group(sums, 2 * most, 4) == 2 * most + 1);
    for (const auto kind : {collective::alltoall, collective::gather, collective::scatter})
        for (const std::size_t ranks : {1, 2, 3, 4})
            CHECK(end_of_group(several(most + 1, kind), 0, int(ranks)) == most / ranks);
    CHECK(end_of_group(several(3, collective::alltoall), 1, int(most)) == 2);
    CHECK(end_of_group(several(3, collective::alltoall), 1, int(most) + 1) == 2);
    auto mixed = several(most, collective::broadcast);
    mixed[most - 1] = several(1, collective::gather)[0];
    CHECK(end_of_group(mixed, 0, 1) == most);
    CHECK(end_of_group(mixed, 0, 2) == most - 1);
    const std::size_t parts[] = {1, 2, 3};
    auto uneven = several(most, collective::allgather);
    for (auto& call : uneven) call.counts = parts;
    CHECK(end_of_group(uneven, 0, 3) == most / 3);
    // All that is sent and received fits into what NCCL takes.
    static_assert(2 * most <= 2048);
}

TEST_CASE("the first failure of a group is the one that is told") {
    for (int ranks = 2; ranks <= 4; ++ranks) {
        hvd::run_threads(ranks, [](hvd::communicator<hvd::threads>& world) {
            hvd::communicator<hvd::nccl> gpus(world, {.timeout = 10s});
            gpus.barrier();
            world.barrier();
            if (world.rank() > 0) return world.barrier();
            emulation::fail("ncclAllReduce", 1, ncclSystemError);
            emulation::fail("ncclAllReduce", 2, ncclInternalError);
            const tensor<int> x{1}, y{1};
            try {
                gpus.allreduce(hvd::fuse(x.view(), y.view()), hvd::sum);
                FAIL("it was taken");
            } catch (const hvd::nccl_error& e) {
                CHECK_MESSAGE(std::string(e.what()).find("code 2") != std::string::npos, e.what());
            }
            world.barrier();
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

TEST_CASE("CUDA's own 16-bit floats, and 8-bit ones as transport") {
    on_gpus([](auto& gpus) {
        const tensor<__half> h{__float2half(1.5f)};
        gpus.allreduce(h.view(), hvd::sum);
        CHECK(__half2float(h.values()[0]) == 1.5f * float(gpus.size()));
        const tensor<__nv_bfloat16> b{__float2bfloat16(float(gpus.rank()))};
        gpus.allreduce(b.view(), hvd::max);
        CHECK(__bfloat162float(b.values()[0]) == float(gpus.size() - 1));
        const tensor<__nv_fp8_e4m3> f{__nv_fp8_e4m3(float(gpus.rank()))};
        gpus.broadcast(f.view(), hvd::root{gpus.size() - 1});
        CHECK(float(f.values()[0]) == float(gpus.size() - 1));
    });
}

TEST_CASE("a stream of the user's, and one that waits for a request") {
    on_gpus([](auto& gpus) {
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        const tensor<int> x{1}, y{0};
        auto pending = gpus.allreduce_async(x.view(), hvd::sum);
        pending.wait(stream);
        gpus.allreduce(x.view(), y.view(), hvd::sum, {.stream = stream});
        CHECK(y.values()[0] == gpus.size() * gpus.size());
        cudaStreamDestroy(stream);
    });
}

TEST_CASE("a rank that is alone does not call NCCL's communicator") {
    hvd::run_threads(1, [](hvd::communicator<hvd::threads>& world) {
        hvd::communicator<hvd::nccl> gpus(world);
        const tensor<int> x{7}, y{0};
        gpus.allreduce(x.view(), y.view(), hvd::sum);
        CHECK(y.values()[0] == 7);
        CHECK(emulation::calls_of("ncclCommInitRankConfig") == 0);
    });
}

TEST_CASE("split by colour") {
    on_gpus([](auto& gpus) {
        auto half = gpus.split(gpus.rank() % 2, -gpus.rank());
        const tensor<int> x{1};
        half.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[0] == half.size());
        CHECK(half.size() == (gpus.size() + 1 - gpus.rank() % 2) / 2);
        auto none = gpus.split(-1);
        CHECK(!none);
    });
}

TEST_CASE("a rank that is silent: the others are told, and shrink") {
    for (int ranks = 2; ranks <= 4; ++ranks) {
        hvd::run_threads(ranks, [](hvd::communicator<hvd::threads>& world) {
            hvd::communicator<hvd::nccl> gpus(world, {.timeout = 10s});
            const int last = gpus.size() - 1;
            const tensor<int> x{1}, y{1};
            gpus.allreduce(tensor<int>{0}.view(), hvd::sum);
            world.barrier();  // no communicator dies while other ranks are still in the call
            if (gpus.rank() == last) {
                gpus.abort();
                return;
            }
            CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum, {.timeout = 1s * slowness}),
                            hvd::peer_error);
            CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum), hvd::peer_error);
            auto rest = gpus.shrink(std::vector<int>{last});
            CHECK(rest.size() == last);
            rest.allreduce(y.view(), hvd::sum);
            CHECK(y.values()[0] == last);
        });
        CHECK(emulation::live_objects() == 0);
        CHECK(emulation::disagreements().empty());
        emulation::reset();
    }
}

TEST_CASE(
    "a rank that NCCL's network has lost: the others are told, at once, and why none shrinks") {
    for (int ranks = 2; ranks <= 4; ++ranks) {
        hvd::run_threads(ranks, [](hvd::communicator<hvd::threads>& world) {
            hvd::communicator<hvd::nccl> gpus(world, {.timeout = 60s});
            const int last = gpus.size() - 1;
            const tensor<int> x{1};
            gpus.allreduce(tensor<int>{0}.view(), hvd::sum);
            world.barrier();
            if (gpus.rank() == last) {
                world.barrier();
                emulation::kill(gpus.native_handle());
                gpus.abort();
                return;
            }
            // NCCL has taken the call when the error comes, and the timeout is far away.
            auto pending = gpus.allreduce_async(x.view(), hvd::sum);
            world.barrier();
            try {
                pending.wait();
                FAIL("a rank was missing");
            } catch (const hvd::peer_error& e) {
                CHECK_MESSAGE(
                    std::string(e.what()).find("another rank is gone") != std::string::npos,
                    e.what());
            }
            try {
                (void)gpus.shrink(std::vector<int>{last});
                FAIL("NCCL 2.28.9 refuses it");
            } catch (const hvd::peer_error& e) {
                CHECK_MESSAGE(
                    std::string(e.what()).find("its network has lost a rank") != std::string::npos,
                    e.what());
            }
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

TEST_CASE("a split for which a rank never comes: the timeout, and nothing is left behind") {
    on_gpus(
        [](auto& gpus) {
            gpus.barrier();
            if (gpus.rank() == 0) return;
            // The ranks first tell each other their colours, which rank 0 does not.
            CHECK_THROWS_AS((void)gpus.split(0), hvd::peer_error);
            CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);
        },
        2, {.timeout = 1s * slowness, .destructor_timeout = 1s});
}

TEST_CASE(
    "calls on a communicator of the user's that end later, in which one rank fails: the others' "
    "timeout, and no trace is left") {
    // The ranks without the failure are still in the call when their timeout passes.
    const auto fails = [](const char* function, auto call) {
        for (int ranks = 2; ranks <= 4; ++ranks) {
            INFO(std::string(function), " on ", ranks, " ranks");
            std::atomic<int> failed = 0, told = 0;
            ncclUniqueId id;
            ncclGetUniqueId(&id);
            hvd::run_threads(ranks, [&](hvd::communicator<hvd::threads>& world) {
                ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
                config.blocking = 0;
                ncclComm_t raw = nullptr;
                ncclCommInitRankConfig(&raw, world.size(), id, world.rank(), &config);
                ncclResult_t state = ncclInProgress;
                while (state == ncclInProgress) ncclCommGetAsyncError(raw, &state);
                hvd::communicator<hvd::nccl> gpus(raw, hvd::adopt, {.timeout = 1s * slowness});
                gpus.barrier();
                if (world.rank() == 0) emulation::fail(function, 1, ncclInternalError);
                world.barrier();
                try {
                    call(gpus);
                    FAIL("one rank was missing");
                } catch (const hvd::nccl_error&) {
                    ++failed;
                } catch (const hvd::peer_error& e) {
                    CHECK_MESSAGE(std::string(e.what()).find("in time") != std::string::npos,
                                  e.what());
                    ++told;
                }
                CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);
            });
            CHECK(failed == 1);
            CHECK(told == ranks - 1);
            CHECK(emulation::live_objects() == 0);
            emulation::reset();
        }
    };
    fails("ncclCommSplit", [](auto& gpus) { (void)gpus.split(0); });
    fails("ncclCommWindowRegister", [](auto& gpus) { hvd::device_arena(gpus, 4096); });
}

TEST_CASE("parts have the configuration of the communicator that they are made from") {
    for (const int blocking : {0, 1})
        for (int ranks = 1; ranks <= 4; ++ranks) {
            ncclUniqueId id;
            ncclGetUniqueId(&id);
            hvd::run_threads(ranks, [&](hvd::communicator<hvd::threads>& world) {
                ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
                config.blocking = blocking;
                config.maxCTAs = 3;
                ncclComm_t raw = nullptr;
                ncclCommInitRankConfig(&raw, world.size(), id, world.rank(), &config);
                ncclResult_t state = ncclInProgress;
                while (state == ncclInProgress) ncclCommGetAsyncError(raw, &state);
                hvd::communicator<hvd::nccl> gpus(raw, hvd::adopt, {.timeout = 10s});
                const tensor<int> x{1};
                if (ranks == 1) return;
                auto half = gpus.split(0, -gpus.rank());
                CHECK(half.rank() == ranks - 1 - gpus.rank());
                CHECK(emulation::config_of(half.native_handle()).maxCTAs == 3);
                CHECK(emulation::config_of(half.native_handle()).blocking == blocking);
                half.allreduce(x.view(), hvd::sum);
                CHECK(x.values()[0] == ranks);
                if (gpus.rank() == 0) return gpus.abort();
                auto rest = gpus.shrink({0});
                CHECK(rest.size() == ranks - 1);
                if (rest.size() > 1) CHECK(emulation::config_of(rest.native_handle()).maxCTAs == 3);
            });
            CHECK(emulation::live_objects() == 0);
            emulation::reset();
        }
}

TEST_CASE("a shrink that excludes nobody leaves calls under way behind") {
    on_gpus(
        [](auto& gpus) {
            const tensor<int> x{1};
            gpus.barrier();
            auto rest = gpus.shrink({});
            rest.allreduce(x.view(), hvd::sum);
            CHECK(x.values()[0] == gpus.size());
            CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);
        },
        2);
}

TEST_CASE("a list that can't be excluded is refused before anything is given up") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank(), other = (r + 1) % n;
        const auto refused = [&](const std::vector<int>& list, const std::string& why) {
            try {
                (void)gpus.shrink(list);
                FAIL("it was taken");
            } catch (const hvd::usage_error& e) {
                INFO(e.what());
                CHECK(std::string(e.what()).find(n > 1 ? why : "has 1 rank") != std::string::npos);
            }
        };
        refused({r}, "rank " + std::to_string(r) + " is this rank");
        refused({other, -1}, "rank -1 is not a rank");
        refused({n}, "rank " + std::to_string(n) + " is not a rank");
        refused({other, other}, "rank " + std::to_string(other) + " is excluded twice");
        const tensor<int> x{1};
        gpus.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[0] == n);
    });
}

TEST_CASE("a rank that never comes: the others' timeout") {
    on_gpus(
        [](auto& gpus) {
            const tensor<int> x{1};
            if (gpus.rank() != 0)
                CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum, {.timeout = 50ms}),
                                hvd::peer_error);
        },
        2, {.timeout = 10s, .destructor_timeout = 1s});
}

TEST_CASE("a rank that never comes: a rank that only calls test() is told by the timeout too") {
    on_gpus(
        [](auto& gpus) {
            const tensor<int> x{1};
            gpus.barrier();  // NCCL connects the ranks in their first call, which waits for all
            if (gpus.rank() == 0) return;
            const auto until = std::chrono::steady_clock::now() + 60s;
            const auto look = [&] {
                auto pending = gpus.allreduce_async(x.view(), hvd::sum, {.timeout = 50ms});
                while (!pending.test() && std::chrono::steady_clock::now() < until) {
                }
            };
            CHECK_THROWS_AS(look(), hvd::peer_error);
        },
        2, {.timeout = 10s, .destructor_timeout = 1s});
}

TEST_CASE("a request that an exception drops waits no longer than a destructor may") {
    on_gpus(
        [](auto& gpus) {
            const tensor<int> x{1};
            gpus.barrier();  // NCCL connects the ranks in their first call, which waits for all
            if (gpus.rank() == 0) return;
            try {
                const auto pending = gpus.allreduce_async(x.view(), hvd::sum);
                throw 1;
            } catch (int) {
            }
            CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);
        },
        2, {.destructor_timeout = 1s});
}

TEST_CASE("a borrowed communicator of NCCL's goes on without what was made in it") {
    on_gpus(
        [](auto& gpus) {
            {
                hvd::communicator<hvd::nccl> borrowed(gpus.native_handle(), hvd::borrow,
                                                      {.timeout = 10s});
                const tensor<hvd::float16> x{hvd::float16(1)};
                borrowed.allreduce(x.view(), hvd::average);
                CHECK(float(x.values()[0]) == 1);
            }
            gpus.barrier();
            CHECK(emulation::calls_of("ncclRedOpDestroy") == gpus.size());
        },
        2);
}

TEST_CASE("a borrowed communicator of NCCL's is its owner's to abort") {
    hvd::run_threads(2, [](hvd::communicator<hvd::threads>& world) {
        hvd::communicator<hvd::nccl> gpus(world, {.timeout = 10s});
        hvd::communicator<hvd::nccl> borrowed(gpus.native_handle(), hvd::borrow);
        if (world.rank() == 0) emulation::fail("ncclCommRevoke", 1, ncclInternalError);
        world.barrier();
        borrowed.abort();
        world.barrier();
        CHECK(emulation::calls_of("ncclCommAbort") == 0);
        world.barrier();
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("a communicator that can't be taken over is not left behind") {
    on_gpus(
        [](auto& gpus) {
            gpus.barrier();
            if (gpus.rank() == 0) emulation::fail("ncclCommUserRank", 1, ncclInternalError);
            gpus.barrier();
            try {
                (void)gpus.split(0);
            } catch (const hvd::nccl_error&) {
            }
            gpus.barrier();
        },
        2);
}

TEST_CASE("arguments that do not fit are refused before anything is called") {
    on_gpus([](auto& gpus) {
        const tensor<int> two{1, 2}, one{1};
        CHECK_THROWS_AS(gpus.allreduce(two.view(), one.view(), hvd::sum), hvd::usage_error);
        CHECK_THROWS_AS(gpus.broadcast(one.view(), hvd::root{gpus.size()}), hvd::usage_error);
        const tensor<int> overlap{1, 2, 3};
        CHECK_THROWS_AS(gpus.allreduce(hvd::device_view(overlap.data(), 2),
                                       hvd::device_view(overlap.data() + 1, 2), hvd::sum),
                        hvd::usage_error);
        const tensor<int> all(std::vector<int>(std::size_t(gpus.size())));
        CHECK_THROWS_AS(gpus.alltoall(all.view(), hvd::into(all.view())), hvd::usage_error);
        CHECK_THROWS_AS(gpus.broadcast(hvd::device_view(static_cast<int*>(nullptr), 2)),
                        hvd::usage_error);
        CHECK_THROWS_AS(gpus.allreduce(one.view(), hvd::sum, {.prescale = 0.5}), hvd::usage_error);
        gpus.allreduce(one.view(), hvd::sum);
        CHECK(one.values()[0] == gpus.size());
    });
}

TEST_CASE("an agreement names a rank that moves a tensor of the same size meanwhile") {
    constexpr std::size_t bytes = sizeof(hvd::detail::call_header);
    on_gpus(
        [](auto& gpus) {
            const int last = gpus.size() - 1;
            if (gpus.rank() == last) {
                const tensor<std::uint8_t> mine(std::vector<std::uint8_t>(bytes, 0xee)),
                    all(std::vector<std::uint8_t>(bytes * std::size_t(gpus.size())));
                gpus.allgather(mine.view(), hvd::into(all.view()));
            } else {
                try {
                    (void)hvd::device_arena(gpus, 4096);
                    FAIL("the ranks agreed on an arena");
                } catch (const hvd::mismatch_error& e) {
                    const std::string said = e.what();
                    CHECK(said.find("device_arena on rank " + std::to_string(gpus.rank())) == 5);
                    CHECK(said.find("rank " + std::to_string(last) + ": another call") !=
                          std::string::npos);
                }
            }
            gpus.barrier();
        },
        2);
}

}  // namespace nccl_tests
