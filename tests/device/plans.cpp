// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Plans of device tensors: their packing, their agreement, and their results.

#include <chrono>

#include "support.hpp"

namespace plans_tests {

using namespace device_test;

namespace {

// Element i of tensor t on a rank. They are small integers, exact in every float.
template <class T>
std::vector<T> numbers(std::size_t count, int t, int rank) {
    std::vector<T> values;
    for (std::size_t i = 0; i < count; ++i)
        values.push_back(T(float((int(i % 7) + t) * (rank + 1))));
    return values;
}

template <class T>
void check_sum(const tensor<T>& x, int t, int size, double factor = 1) {
    const auto values = x.values(), one = numbers<T>(values.size(), t, 0);
    const int ranks = size * (size + 1) / 2;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double expected = double(float(one[i])) * ranks * factor;
        REQUIRE(double(float(values[i])) ==
                doctest::Approx(expected).epsilon(sizeof(T) == 2 ? 0.008 : 1e-6));
    }
}

}  // namespace

TEST_CASE(
    "a plan packs small tensors of several types by one launch, and leaves large ones where they "
    "are") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        const tensor<float> a(numbers<float>(5, 0, r)), b(numbers<float>(1000, 1, r)),
            large(numbers<float>(300'000, 2, r));
        const tensor<hvd::bfloat16> c(numbers<hvd::bfloat16>(33, 3, r)),
            d(numbers<hvd::bfloat16>(7, 4, r));
        const tensor<int> i(numbers<int>(9, 5, r)), j(numbers<int>(1, 6, r));
        auto plan = gpus.plan_allreduce(
            hvd::fuse(a.view(), c.view(), i.view(), b.view(), large.view(), d.view(), j.view()),
            hvd::sum);
        plan.run();
        check_sum(a, 0, n), check_sum(b, 1, n), check_sum(large, 2, n), check_sum(c, 3, n),
            check_sum(d, 4, n);
        check_sum(i, 5, n), check_sum(j, 6, n);
        gpus.barrier();
        if (n == 1) return;
        CHECK(plan.packed_bytes() > 0);
        CHECK(emulation::calls_of("launch_tiles") == 2 * n);
        CHECK(emulation::calls_of("ncclAllReduce") ==
              n * (4 + 1));  // one for each type, the large one, and the barrier
    });
}

TEST_CASE("a plan runs again and again, on streams of the user's, and allocates nothing") {
    on_gpus([](auto& gpus) {
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        const tensor<float> a{1}, b{2, 2};
        auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum);
        gpus.barrier();
        const int allocations = emulation::calls_of("cudaMalloc");
        gpus.barrier();
        auto pending = plan.run_async(stream);
        pending.wait();
        plan.run();
        auto moved = std::move(plan);
        CHECK(!plan);
        moved.run(stream);
        gpus.barrier();
        CHECK(emulation::calls_of("cudaMalloc") == allocations);
        const int cube = gpus.size() * gpus.size() * gpus.size();
        CHECK(a.values()[0] == float(cube));
        CHECK(b.values()[1] == float(2 * cube));
        CHECK_THROWS_AS(plan.run(), hvd::usage_error);
        cudaStreamDestroy(stream);
    });
}

TEST_CASE("averages and scales of a plan, packed or not") {
    for (const std::size_t below : {std::size_t(0), std::size_t(1) << 20})
        on_gpus([below](auto& gpus) {
            const int n = gpus.size(), r = gpus.rank();
            const tensor<float> a(numbers<float>(50, 1, r)), b(numbers<float>(3, 2, r));
            const tensor<hvd::bfloat16> c(numbers<hvd::bfloat16>(17, 3, r)),
                d(numbers<hvd::bfloat16>(40, 0, r));
            const tensor<hvd::float16> e(numbers<hvd::float16>(8, 1, r)),
                f(numbers<hvd::float16>(9, 1, r));
            gpus.plan_allreduce(
                    hvd::fuse(a.view(), b.view(), c.view(), d.view(), e.view(), f.view()),
                    hvd::average, {.prescale = 0.3, .postscale = 5, .pack_below = below})
                .run();
            const double factor = 1.5 / n;
            check_sum(a, 1, n, factor), check_sum(b, 2, n, factor), check_sum(c, 3, n, factor),
                check_sum(d, 0, n, factor);
            check_sum(e, 1, n, factor), check_sum(f, 1, n, factor);
        });
}

TEST_CASE("floats that travel as 16-bit ones") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        const auto check_mean = [n](const tensor<float>& x, int t) {
            const auto got = x.values(), one = numbers<float>(got.size(), t, 0);
            for (std::size_t i = 0; i < got.size(); ++i)
                REQUIRE(got[i] == doctest::Approx(one[i] * float(n + 1) / 2).epsilon(0.008));
        };
        const tensor<float> a(numbers<float>(50, 1, r)), large(numbers<float>(200'001, 2, r));
        auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), large.view()), hvd::average, {},
                                        hvd::codec::cast<hvd::bfloat16>);
        plan.run();
        check_mean(a, 1);
        check_mean(large, 2);
        if (n > 1) CHECK(plan.packed_bytes() >= 2 * 200'051);
    });
}

TEST_CASE(
    "means of float16 whose sum is no float16, packed or not, also as the wire type of floats") {
    for (const std::size_t below : {std::size_t(0), std::size_t(1) << 20})
        on_gpus([below](auto& gpus) {
            const std::vector<hvd::float16> values(10, hvd::float16(40000));
            const tensor<hvd::float16> a(values), b(values);
            const tensor<float> c(std::vector<float>(10, 40000)), d(std::vector<float>(10, 60000));
            gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::average, {.pack_below = below})
                .run();
            for (const hvd::float16 x : a.values()) CHECK(float(x) == 40000);
            for (const hvd::float16 x : b.values()) CHECK(float(x) == 40000);
            gpus.plan_allreduce(c.view(), hvd::average, {.pack_below = below},
                                hvd::codec::cast<hvd::float16>)
                .run();
            CHECK(c.values() == std::vector<float>(10, 40000));
            gpus.plan_allreduce(d.view(), hvd::average,
                                {.prescale = 0.01, .postscale = 100, .pack_below = below},
                                hvd::codec::cast<hvd::float16>)
                .run();
            CHECK(d.values()[9] == doctest::Approx(60000).epsilon(0.001));
        });
}

TEST_CASE("a broadcast of many tensors") {
    on_gpus([](auto& gpus) {
        const int root = gpus.size() - 1, r = gpus.rank();
        const tensor<float> a(numbers<float>(5, 1, r)), large(numbers<float>(300'000, 1, r));
        const tensor<double> b(numbers<double>(3, 2, r));
        const tensor<short> c(numbers<short>(11, 3, r));
        gpus.plan_broadcast(hvd::fuse(a.view(), b.view(), large.view(), c.view()), hvd::root{root})
            .run();
        CHECK(a.values() == numbers<float>(5, 1, root));
        CHECK(b.values() == numbers<double>(3, 2, root));
        CHECK(c.values() == numbers<short>(11, 3, root));
        CHECK(large.values() == numbers<float>(300'000, 1, root));
        gpus.broadcast(hvd::fuse(a.view(), b.view()), hvd::root{0});
        CHECK(b.values() == numbers<double>(3, 2, root));
        CHECK(gpus.plan_broadcast(hvd::fuse(a.view(), large.view())).packed_bytes() ==
              0);  // a single tensor is not worth packing
    });
}

TEST_CASE("a run of a plan that has gone ends well") {
    on_gpus([](auto& gpus) {
        const tensor<float> a{1}, b{2};
        auto pending = gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum).run_async();
        pending.wait();
        CHECK(b.values()[0] == float(2 * gpus.size()));
    });
}

TEST_CASE("a plan's name is in what its runs say") {
    on_gpus(
        [](auto& gpus) {
            const tensor<float> a{1};
            auto plan = gpus.plan_allreduce(a.view(), hvd::sum, {.name = "step", .timeout = 50ms});
            if (gpus.rank() == 0) return;
            for (const char* why : {"did not come in time", "was given up after"}) {
                try {
                    plan.run();
                    FAIL("rank 0 came");
                } catch (const hvd::peer_error& e) {
                    INFO(e.what());
                    CHECK(std::string(e.what()).starts_with("hvd: allreduce 'step' on rank "));
                    CHECK(std::string(e.what()).find(why) != std::string::npos);
                }
            }
        },
        2, {.timeout = 10s, .destructor_timeout = 1s});
}

TEST_CASE("where one rank has no room for a plan, all are told, and the communicator works on") {
    on_gpus(
        [](auto& gpus) {
            const tensor<float> a{1}, b{2};
            const tensor<int> refused{0};
            gpus.barrier();
            if (gpus.rank() == 0) emulation::fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
            gpus.barrier();
            int failed = 0;
            try {
                (void)gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum);
                FAIL("there was room");
            } catch (const hvd::cuda_error&) {
                failed = 1;
            } catch (const hvd::peer_error& e) {
                CHECK(std::string(e.what()).find("refused it: hvd: cudaMalloc") !=
                      std::string::npos);
            }
            cudaMemcpy(refused.data(), &failed, sizeof failed, cudaMemcpyHostToDevice);
            gpus.allreduce(refused.view(), hvd::sum);
            CHECK(refused.values()[0] == 1);
            gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum).run();
            CHECK(b.values()[0] == float(2 * gpus.size()));
        },
        2);
}

TEST_CASE("plans of one tensor, and of those that move") {
    on_gpus([](auto& gpus) {
        const std::size_t n = std::size_t(gpus.size());
        const tensor<int> mine{gpus.rank(), 7}, all(std::vector<int>(2 * n)), one{1};
        auto gather = gpus.plan_allgather(mine.view(), hvd::into(all.view()));
        gather.run();
        for (std::size_t p = 0; p < n; ++p) CHECK(all.values()[2 * p] == int(p));
        auto scatter = gpus.plan_reduce_scatter(all.view(), hvd::sum, hvd::into(mine.view()));
        scatter.run();
        CHECK(mine.values() == std::vector<int>{gpus.rank() * int(n), 7 * int(n)});
        gpus.plan_allreduce(one.view(), hvd::sum).run();
        CHECK(one.values()[0] == int(n));
        std::vector<hvd::tensor_view<int, hvd::device>> none;
        gpus.plan_allreduce(hvd::fuse(none), hvd::sum).run();
    });
}

TEST_CASE("ranks that plan the same bytes in another way are told so") {
    on_gpus(
        [](auto& gpus) {
            const bool odd = gpus.rank() == 1;
            const auto differs = [&](auto plan) { CHECK_THROWS_AS(plan(), hvd::mismatch_error); };
            // The same bytes, slots and calls, in tensors of other lengths.
            const tensor<float> three{1, 2, 3}, five{1, 2, 3, 4, 5};
            const std::vector ascending{three.view(), five.view()},
                descending{five.view(), three.view()};
            const auto& order = odd ? descending : ascending;
            differs([&] { (void)gpus.plan_allreduce(hvd::fuse(order), hvd::sum); });
            differs([&] { (void)gpus.plan_broadcast(hvd::fuse(order)); });
            // Codecs whose types are of one size.
            differs([&] {
                if (odd)
                    (void)gpus.plan_allreduce(five.view(), hvd::sum, {},
                                              hvd::codec::cast<hvd::float16>);
                else
                    (void)gpus.plan_allreduce(five.view(), hvd::sum, {},
                                              hvd::codec::cast<hvd::bfloat16>);
            });
            // The same tensors, packed on one rank only.
            differs([&] {
                (void)gpus.plan_allreduce(hvd::fuse(order), hvd::sum,
                                          {.pack_below = odd ? 0u : 1000u});
            });
            // Neighbours in an arena are one call, and tensors apart are two.
            hvd::device_arena arena(gpus, 4096);
            const auto a = arena.tensor<float>(hvd::shape(32)),
                       b = arena.tensor<float>(hvd::shape(32)),
                       c = arena.tensor<float>(hvd::shape(32));
            differs([&] {
                (void)gpus.plan_allreduce(odd ? hvd::fuse(a, b) : hvd::fuse(a, c), hvd::sum);
            });
            // One call of the same length, from an arena on one rank and packed on the others.
            const tensor<float> d(std::vector<float>(32)), e(std::vector<float>(32));
            differs([&] {
                (void)gpus.plan_allreduce(odd ? hvd::fuse(a, b) : hvd::fuse(d.view(), e.view()),
                                          hvd::sum);
            });
            gpus.plan_allreduce(hvd::fuse(ascending), hvd::sum).run();
            CHECK(three.values()[2] == float(3 * gpus.size()));
        },
        2);
}

TEST_CASE("ranks that plan different things are told so, all of them") {
    on_gpus(
        [](auto& gpus) {
            const bool odd = gpus.rank() == 1;
            const tensor<float> two{1, 2}, three{1, 2, 3};
            CHECK_THROWS_AS((void)gpus.plan_allreduce(odd ? two.view() : three.view(), hvd::sum),
                            hvd::mismatch_error);
            try {
                (void)gpus.plan_allreduce(two.view(), hvd::sum, {.prescale = odd ? 0.5 : 1});
                FAIL("no mismatch");
            } catch (const hvd::mismatch_error& e) {
                CHECK(e.field() == "prescale");
                CHECK(e.table()[1].second == "0.5");
                CHECK(e.table().size() == std::size_t(gpus.size()));
            }
            // a refusal of one rank reaches all
            if (odd)
                CHECK_THROWS_AS((void)gpus.plan_broadcast(two.view(), hvd::root{9}),
                                hvd::usage_error);
            else
                CHECK_THROWS_AS((void)gpus.plan_broadcast(two.view(), hvd::root{0}),
                                hvd::peer_error);
            gpus.plan_allreduce(two.view(), hvd::sum).run();  // the communicator works on
            CHECK(two.values()[1] == float(2 * gpus.size()));
        },
        2);
}

TEST_CASE("tensors that are nowhere, too short or overlap are refused, and all ranks are told") {
    on_gpus([](auto& gpus) {
        const bool odd = gpus.rank() == gpus.size() - 1;
        const std::size_t n = std::size_t(gpus.size());
        const tensor<float> x(std::vector<float>(2 * n, 1)), y{1, 2};
        const auto nowhere = hvd::device_view(static_cast<float*>(nullptr), 2);
        const auto mine = odd ? nowhere : y.view();
        const auto shifted = hvd::device_view(x.data() + 1, 2);
        const auto refused = [&](const char* why, auto&& plan) {
            INFO(std::string(why));
            try {
                (void)plan();
                FAIL("it was taken");
            } catch (const hvd::usage_error& e) {
                CHECK(odd);
                CHECK(std::string(e.what()).find(why) != std::string::npos);
            } catch (const hvd::peer_error& e) {
                CHECK(!odd);
                CHECK(std::string(e.what()).find(why) != std::string::npos);
            }
        };
        const char* const null = "null pointer with ";
        refused(null, [&] { return gpus.plan_allreduce(mine, hvd::sum); });
        refused(null, [&] { return gpus.plan_allreduce(hvd::fuse(mine, x.view()), hvd::sum); });
        refused(null, [&] { return gpus.plan_broadcast(mine); });
        refused(null, [&] { return gpus.plan_broadcast(hvd::fuse(mine, x.view())); });
        refused(null, [&] { return gpus.plan_allgather(mine, hvd::into(x.view())); });
        refused(null,
                [&] { return gpus.plan_reduce_scatter(x.view(), hvd::sum, hvd::into(mine)); });
        refused(".timeout is -2 ns", [&] {
            const auto timeout =
                odd ? hvd::time_limit(std::chrono::nanoseconds(-2)) : hvd::time_limit();
            return gpus.plan_allreduce(y.view(), hvd::sum, {.timeout = timeout});
        });
        refused("elements overlap",
                [&] { return gpus.plan_allgather(odd ? shifted : y.view(), hvd::into(x.view())); });
        refused("elements, expected", [&] {
            const auto all = hvd::device_view(x.data(), odd ? 2 * n - 1 : 2 * n);
            return gpus.plan_reduce_scatter(all, hvd::sum, hvd::into(y.view()));
        });
        gpus.plan_allreduce(y.view(), hvd::sum).run();
        CHECK(y.values()[1] == float(2 * n));
    });
}

TEST_CASE("several tensors in one call go from where they are") {
    on_gpus([](auto& gpus) {
        const tensor<float> a{1, 2}, c{3};
        const tensor<int> b{3};
        const std::vector<hvd::tensor_view<float, hvd::device>> list{a.view(), c.view()};
        gpus.allreduce(hvd::fuse(list, b.view()), hvd::sum);
        CHECK(a.values()[1] == float(2 * gpus.size()));
        CHECK(b.values()[0] == 3 * gpus.size());
        CHECK(c.values()[0] == float(3 * gpus.size()));
        CHECK(emulation::calls_of("launch_tiles") == 0);
    });
}

}  // namespace plans_tests
