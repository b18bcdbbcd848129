// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// All policies for device tensors give the results of a serial reference.

#include <chrono>
#include <set>

#include "support.hpp"

namespace policies_tests {

using namespace device_test;

namespace {

using hvd::nccl, hvd::threads;
using host = threads;
using mixed = hvd::per_operation<nccl, hvd::staged<host>, hvd::staged<host>>;

using in_nodes = hvd::hierarchical<nccl, host>;

template <class Backend, class F>
void on_ranks(int ranks, int node, F f) {
    INFO("on ", ranks, " ranks in nodes of ", node);
    hvd::run_threads(ranks,
                     [&](hvd::communicator<host>& world) {
                         hvd::communicator<Backend> gpus(world, {.timeout = 20s});
                         f(gpus);
                     },
                     {.node_size = node});
    CHECK(emulation::live_objects() == 0);
    CHECK(emulation::disagreements().empty());
    emulation::reset();
}

// Runs every policy on 1 to 4 ranks. If it knows nodes, they have 1, 2 and all ranks.
template <class Backend, class F>
void on_policy(F f) {
    for (int ranks = 1; ranks <= 4; ++ranks)
        for (const int node :
             std::is_same_v<Backend, in_nodes> ? std::set{1, 2, ranks} : std::set{ranks})
            on_ranks<Backend>(ranks, node, f);
}

template <class T>
void check_reductions(auto& gpus, std::size_t count) {
    const int n = gpus.size(), r = gpus.rank(), ranks = n * (n + 1) / 2;
    const auto one = numbers<T>(count, 0);
    const tensor<T> x(numbers<T>(count, r)), y(one), z(numbers<T>(count, r));
    gpus.allreduce(x.view(), y.view(), hvd::sum);
    gpus.allreduce(x.view(), hvd::max);
    const auto sums = y.values(), most = x.values();
    bool right = true;
    for (std::size_t i = 0; i < count; ++i)
        right = right && float(sums[i]) == float(one[i]) * float(ranks) &&
                float(most[i]) == float(one[i]) * float(n);
    CHECK(right);
    if constexpr (!std::is_integral_v<T>) {
        gpus.allreduce(z.view(), hvd::average, {.prescale = 2});
        const auto means = z.values();
        for (std::size_t i = 0; i < count; ++i)
            right = right &&
                    float(means[i]) == doctest::Approx(float(one[i]) * float(n + 1)).epsilon(0.008);
        CHECK(right);
    }
}

template <class Backend>
void check_policy() {
    on_policy<Backend>([](auto& gpus) {
        for (const std::size_t count : {std::size_t(0), std::size_t(1), std::size_t(1001)}) {
            check_reductions<float>(gpus, count);
            check_reductions<hvd::bfloat16>(gpus, count);
            check_reductions<int>(gpus, count);
        }
        const int n = gpus.size(), r = gpus.rank(), last = n - 1;
        const std::size_t ranks = std::size_t(n);
        const tensor<double> b{double(r), 2.0 * r};
        gpus.broadcast(b.view(), hvd::root{last});
        CHECK(b.values() == std::vector<double>{double(last), 2.0 * last});

        const tensor<short> mine{short(r), short(10 * r)}, all(std::vector<short>(2 * ranks, -1)),
            back{-1, -1};
        gpus.allgather(mine.view(), hvd::into(all.view()));
        for (int p = 0; p < n; ++p) CHECK(all.values()[std::size_t(2 * p + 1)] == 10 * p);
        gpus.scatter(all.view(), hvd::into(back.view()), hvd::root{last});
        CHECK(back.values() == mine.values());
        gpus.gather(mine.view(), hvd::into(all.view()), hvd::root{0});
        CHECK(all.values()[2 * ranks - 2] == last);

        std::vector<int> parts;
        for (int p = 0; p < n; ++p) parts.push_back(10 * r + p);
        const tensor<int> out(parts), in(std::vector<int>(ranks, -1)), part{-1};
        gpus.alltoall(out.view(), hvd::into(in.view()));
        for (int p = 0; p < n; ++p) CHECK(in.values()[std::size_t(p)] == 10 * p + r);
        gpus.reduce_scatter(out.view(), hvd::sum, hvd::into(part.view()));
        CHECK(part.values()[0] == 10 * (n * (n - 1) / 2) + n * r);
        const tensor<int> low{r + 5}, least{-1};
        gpus.reduce(low.view(), hvd::into(least.view()), hvd::min, hvd::root{last});
        CHECK(least.values()[0] == (r == last ? 5 : -1));  // other outputs stay as they are
        gpus.barrier();
    });
}

// In-place calls that NCCL supports are right; every other overlap is refused.
template <class Backend>
void check_overlaps() {
    on_policy<Backend>([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank(), last = n - 1;
        const std::size_t ranks = std::size_t(n), own = 2 * std::size_t(r);
        std::vector<int> own_only(2 * ranks, -1), everything;
        own_only[own] = own_only[own + 1] = r;
        for (int p = 0; p < n; ++p) everything.insert(everything.end(), 2, p);
        const tensor<int> all(own_only), rooted(own_only), spare(std::vector<int>(2 * ranks + 1));
        const auto at = [](const tensor<int>& x, std::size_t first, std::size_t count) {
            return hvd::device_view(x.data() + first, count);
        };
        const auto mine = at(all, own, 2), whole = at(spare, 0, 2 * ranks), part = at(spare, 1, 2);
        gpus.allgather(mine, hvd::into(all.view()));
        CHECK(all.values() == everything);
        gpus.gather(at(rooted, own, 2), hvd::into(rooted.view()), hvd::root{last});
        CHECK(rooted.values() == (r == last ? everything : own_only));
        gpus.scatter(rooted.view(), hvd::into(at(rooted, own, 2)), hvd::root{last});
        CHECK(rooted.values() == (r == last ? everything : own_only));
        gpus.reduce_scatter(all.view(), hvd::sum, hvd::into(mine));
        CHECK(all.values()[own] == r * n);
        gpus.reduce(at(spare, own, 2), hvd::into(at(spare, own, 2)), hvd::sum, hvd::root{last});

        CHECK_THROWS_AS(gpus.allgather(part, hvd::into(whole)), hvd::usage_error);
        CHECK_THROWS_AS(gpus.reduce_scatter(whole, hvd::sum, hvd::into(part)), hvd::usage_error);
        CHECK_THROWS_AS(gpus.alltoall(whole, hvd::into(at(spare, 1, 2 * ranks))), hvd::usage_error);
        if (r != 0) return;  // memory that the others do not use may overlap
        CHECK_THROWS_AS(gpus.gather(part, hvd::into(whole), hvd::root{0}), hvd::usage_error);
        CHECK_THROWS_AS(gpus.scatter(whole, hvd::into(part), hvd::root{0}), hvd::usage_error);
        CHECK_THROWS_AS(gpus.reduce(at(spare, 0, 2), hvd::into(part), hvd::sum, hvd::root{0}),
                        hvd::usage_error);
        // The root's output has room for all.
        CHECK_THROWS_AS(
            gpus.reduce(at(spare, 0, 2), hvd::into(at(spare, 2, 1)), hvd::sum, hvd::root{0}),
            hvd::usage_error);
    });
}

template <class Backend>
void check_uneven() {
    on_policy<Backend>([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank(), last = n - 1;
        std::vector<std::size_t> counts, received(static_cast<std::size_t>(n), std::size_t(r));
        std::vector<int> expected, out, in;
        for (int p = 0; p < n; ++p) {
            counts.push_back(std::size_t(p));
            expected.insert(expected.end(), std::size_t(p), 10 * p);
            out.insert(out.end(), std::size_t(p), 100 * r + p);
            in.insert(in.end(), std::size_t(r), 100 * p + r);
        }
        const std::size_t own = std::size_t(r);
        const tensor<int> mine(std::vector<int>(own, 10 * r)),
            all(std::vector<int>(expected.size(), -1)), back(std::vector<int>(own, -1));
        gpus.allgather(mine.view(), hvd::into(all.view()), {.counts = counts});
        CHECK(all.values() == expected);
        gpus.scatter(all.view(), hvd::into(back.view()), hvd::root{last}, {.counts = counts});
        CHECK(back.values() == mine.values());
        const tensor<int> rooted(std::vector<int>(expected.size(), -1));
        gpus.gather(mine.view(), hvd::into(rooted.view()), hvd::root{0}, {.counts = counts});
        CHECK(rooted.values() == (r == 0 ? expected : std::vector<int>(expected.size(), -1)));
        gpus.reduce_scatter(all.view(), hvd::sum, hvd::into(back.view()), {.counts = counts});
        CHECK(back.values() == std::vector<int>(own, 10 * r * n));
        const tensor<int> send(out), receive(std::vector<int>(in.size(), -1));
        gpus.alltoall(send.view(), hvd::into(receive.view()),
                      {.counts = counts, .receive_counts = received});
        CHECK(receive.values() == in);
    });
}

template <class Backend>
void check_plan() {
    on_policy<Backend>([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        const tensor<float> a(numbers<float>(5, r)), b(numbers<float>(1000, r)),
            large(numbers<float>(200'000, r));
        const tensor<hvd::float16> c(numbers<hvd::float16>(33, r));
        auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), c.view(), b.view(), large.view()),
                                        hvd::average);
        auto give = gpus.plan_broadcast(hvd::fuse(a.view(), b.view(), c.view()), hvd::root{n - 1});
        plan.run();
        give.run();
        CHECK(a.values()[3] == doctest::Approx(1.5 * (n + 1)));
        CHECK(b.values()[10] == doctest::Approx(5.0 * (n + 1)));
        CHECK(large.values()[199'999] == doctest::Approx(199'999 % 11 * 0.5 * (n + 1)));
        CHECK(float(c.values()[32]) == doctest::Approx(5.0 * (n + 1)).epsilon(0.002));
        if (n > 1)
            CHECK_THROWS_AS(
                (void)gpus.plan_allreduce(a.view(), hvd::sum, {.prescale = r == 0 ? 1.0 : 2.0}),
                hvd::mismatch_error);
    });
}

}  // namespace

TEST_CASE("staged: every collective") { check_policy<hvd::staged<host>>(); }
TEST_CASE("staged: parts of different sizes") { check_uneven<hvd::staged<host>>(); }
TEST_CASE("staged: overlaps") { check_overlaps<hvd::staged<host>>(); }
TEST_CASE("staged: plans") { check_plan<hvd::staged<host>>(); }
TEST_CASE("hierarchical: every collective") { check_policy<in_nodes>(); }
TEST_CASE("hierarchical: parts of different sizes") { check_uneven<in_nodes>(); }
TEST_CASE("hierarchical: overlaps") { check_overlaps<in_nodes>(); }
TEST_CASE("hierarchical: plans") { check_plan<in_nodes>(); }
TEST_CASE("a backend per operation: every collective") { check_policy<mixed>(); }
TEST_CASE("a backend per operation: parts of different sizes") { check_uneven<mixed>(); }
TEST_CASE("a backend per operation: overlaps") { check_overlaps<mixed>(); }
TEST_CASE("a backend per operation: plans") { check_plan<mixed>(); }

TEST_CASE("a tensor of many chunks is staged piece by piece, and comes out whole") {
    on_ranks<hvd::staged<host>>(2, 2, [](auto& gpus) {
        const std::size_t count = (std::size_t(9) << 20) / 4 + 3;
        check_reductions<float>(gpus, count);
        const tensor<int> x(std::vector<int>(count, gpus.rank()));
        gpus.broadcast(x.view(), hvd::root{gpus.size() - 1});
        CHECK(x.values() == std::vector<int>(count, gpus.size() - 1));
    });
}

TEST_CASE("staged tensors are reduced by whatever the host has: callables, rounded integers") {
    on_policy<hvd::staged<host>>([](auto& gpus) {
        const tensor<int> x{gpus.rank() + 1, -gpus.rank() - 1};
        const int limit = 3;
        gpus.allreduce(x.view(), [limit](int a, int b) { return std::min(std::max(a, b), limit); });
        CHECK(x.values()[0] == std::min(gpus.size(), gpus.size() == 1 ? 1 : 3));
        const tensor<int> y{gpus.rank()};
        gpus.allreduce(y.view(), hvd::average(hvd::rounding::toward_zero));
        CHECK(y.values()[0] == (gpus.size() - 1) / 2);
    });
}

TEST_CASE("integers without a rounding are scaled neither by a staged call nor by a plan") {
    on_policy<hvd::staged<host>>([](auto& gpus) {
        const tensor<int> x{gpus.rank() + 1};
        CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum, {.prescale = 0.5}), hvd::usage_error);
        CHECK_THROWS_AS((void)gpus.plan_allreduce(x.view(), hvd::sum, {.prescale = 0.5}),
                        hvd::usage_error);
        gpus.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[0] == gpus.size() * (gpus.size() + 1) / 2);
    });
}

TEST_CASE("ranks that disagree on a staged call are told, and the communicator works on") {
    on_policy<hvd::staged<host>>([](auto& gpus) {
        if (gpus.size() == 1) return;
        const tensor<float> two{1, 2}, three{1, 2, 3};
        CHECK_THROWS_AS(gpus.allreduce(gpus.rank() == 0 ? two.view() : three.view(), hvd::sum),
                        hvd::mismatch_error);
        gpus.allreduce(two.view(), hvd::sum);
        CHECK(two.values()[1] == float(2 * gpus.size()));
    });
}

TEST_CASE("staged tensors that are moved have one element type on all ranks") {
    on_ranks<hvd::staged<host>>(2, 2, [](auto& gpus) {
        const std::size_t n = std::size_t(gpus.size());
        const tensor<double> wide(std::vector<double>(4 * n)), all_wide(std::vector<double>(4 * n));
        const tensor<float> narrow(std::vector<float>(8 * n)), all(std::vector<float>(8 * n));
        const auto disagree = [&](auto&& call) {
            const auto made = [&] {
                if (gpus.rank() == 0) call(wide, all_wide, 4);
                else call(narrow, all, 8);
            };
            CHECK_THROWS_AS(made(), hvd::mismatch_error);
        };
        disagree([&](const auto& x, const auto&, std::size_t) { gpus.broadcast(x.view()); });
        disagree([&](const auto& x, const auto& y, std::size_t each) {
            gpus.allgather(hvd::device_view(x.data(), each), hvd::into(y.view()));
        });
        disagree([&](const auto& x, const auto& y, std::size_t) {
            gpus.alltoall(x.view(), hvd::into(y.view()));
        });
        disagree([&](const auto& x, const auto& y, std::size_t each) {
            const std::vector<std::size_t> counts(n, each);
            gpus.gather(hvd::device_view(x.data(), each), hvd::into(y.view()), hvd::root{0},
                        {.counts = counts});
        });
        gpus.broadcast(wide.view());
    });
}

TEST_CASE("a refusal of one rank by itself is told to the others, which go on") {
    on_ranks<hvd::staged<host>>(2, 2, [](auto& gpus) {
        const std::size_t n = std::size_t(gpus.size());
        const tensor<float> x(std::vector<float>(8 * n, 1)), half(std::vector<float>(4 * n)),
            y(std::vector<float>(8 * n));
        const auto one_refuses = [&](auto&& call) {
            if (gpus.rank() == 0) {
                CHECK_THROWS_AS(call(half), hvd::usage_error);
                return;
            }
            try {
                call(y);
                FAIL("it was made");
            } catch (const hvd::peer_error& e) {
                CHECK(e.peers() == std::vector<int>{0});
                CHECK_MESSAGE(std::string(e.what()).find("rank 0 refused it") != std::string::npos,
                              e.what());
            }
        };
        one_refuses([&](const auto& out) { gpus.allreduce(x.view(), out.view(), hvd::sum); });
        one_refuses([&](const auto& out) { gpus.alltoall(x.view(), hvd::into(out.view())); });
        one_refuses([&](const auto& out) {
            const bool wrong = out.data() == half.data();
            gpus.barrier({.timeout = wrong ? hvd::time_limit(std::chrono::nanoseconds(-2))
                                           : hvd::time_limit()});
        });
        one_refuses([&](const auto& out) {
            (void)gpus.plan_allgather(hvd::device_view(x.data(), 8), hvd::into(out.view()));
        });
        gpus.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[0] == float(n));
    });
}

TEST_CASE("ranks with other numbers of chunks are told so, all of them, in the same call") {
    on_ranks<hvd::staged<host>>(2, 2, [](auto& gpus) {
        const std::size_t chunk = hvd::detail::staged_session<host>::chunk_bytes,
                          n = std::size_t(gpus.size());
        const std::size_t bytes = (2 + std::size_t(gpus.rank())) * chunk;
        const tensor<std::byte> x{std::vector<std::byte>(bytes)},
            all{std::vector<std::byte>(n * bytes)};
        CHECK_THROWS_AS(gpus.broadcast(x.view()), hvd::mismatch_error);
        CHECK_THROWS_AS(
            gpus.allreduce(hvd::device_view(reinterpret_cast<int*>(x.data()), bytes / sizeof(int)),
                           hvd::sum),
            hvd::mismatch_error);
        CHECK_THROWS_AS(gpus.allgather(x.view(), hvd::into(all.view())), hvd::mismatch_error);
        const tensor<int> one{1};
        gpus.allreduce(one.view(), hvd::sum);
        CHECK(one.values()[0] == gpus.size());
    });
}

TEST_CASE("a staged plan gives the bits of the host") {
    hvd::run_threads(3, [](hvd::communicator<host>& world) {
        hvd::communicator<hvd::staged<host>> gpus(world);
        std::vector<float> values;
        for (int i = 0; i < 100; ++i)
            values.push_back(0.1f * float(i) + 0.37f * float(world.rank()));
        const tensor<float> x(values), y(values);
        gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::average,
                            {.prescale = 0.3, .postscale = 0.7})
            .run();
        world.allreduce(values, hvd::average, {.prescale = 0.3, .postscale = 0.7});
        CHECK(x.values() == values);
        CHECK(y.values() == values);
    });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("floats that travel as 16-bit ones have the bits of the host's plan") {
    for (const int ranks : {1, 2, 3})
        hvd::run_threads(ranks, [](hvd::communicator<host>& world) {
            hvd::communicator<hvd::staged<host>> gpus(world);
            std::vector<float> values;  // no bfloat16 holds a third of their sum
            for (int i = 0; i < 100; ++i) values.push_back(float(i * 7 + world.rank() * 13) / 11);
            const tensor<float> x(values), y(std::vector<float>(3, 40000));
            gpus.plan_allreduce(x.view(), hvd::average, {.prescale = 0.3, .postscale = 1.7},
                                hvd::codec::cast<hvd::bfloat16>)
                .run();
            world
                .plan_allreduce(values, hvd::average, {.prescale = 0.3, .postscale = 1.7},
                                hvd::codec::cast<hvd::bfloat16>)
                .run();
            CHECK(x.values() == values);
            gpus.plan_allreduce(y.view(), hvd::average, {}, hvd::codec::cast<hvd::float16>).run();
            CHECK(y.values() == std::vector<float>(3, 40000));  // a sum of two is no float16
        });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

TEST_CASE("a hierarchical communicator that is one node leaves it all to NCCL") {
    on_ranks<in_nodes>(3, 3, [](auto& gpus) {
        const tensor<hvd::bfloat16> x{hvd::bfloat16(float(gpus.rank()))};
        gpus.allreduce(x.view(), hvd::average);
        CHECK(float(x.values()[0]) == 1);
        CHECK(emulation::calls_of("ncclReduceScatter") == 0);
        CHECK(emulation::calls_of("cudaHostAlloc") == 0);
    });
}

TEST_CASE("sums of float16 are kept small inside the nodes") {
    on_policy<in_nodes>([](auto& gpus) {
        const int n = gpus.size();
        const tensor<hvd::float16> mean(std::vector<hvd::float16>(5, hvd::float16(40000))),
            sum(std::vector<hvd::float16>(5, hvd::float16(60000)));
        gpus.allreduce(mean.view(), hvd::average);
        for (const hvd::float16 x : mean.values()) CHECK(float(x) == 40000);
        gpus.allreduce(sum.view(), hvd::sum, {.prescale = 0.01});
        for (const hvd::float16 x : sum.values())
            CHECK(float(x) == doctest::Approx(600 * n).epsilon(0.001));
        const tensor<float> large(std::vector<float>(5, 40000));
        gpus.plan_allreduce(large.view(), hvd::average, {}, hvd::codec::cast<hvd::float16>).run();
        CHECK(large.values() == std::vector<float>(5, 40000));
    });
    on_ranks<in_nodes>(4, 2, [](auto& gpus) {  // the host's step takes the whole of a large tensor
        const tensor<hvd::float16> x{hvd::float16(60)};
        gpus.allreduce(x.view(), hvd::sum, {.prescale = 1024, .postscale = 0x1p-10});
        CHECK(float(x.values()[0]) == 240);
    });
}

TEST_CASE("a scale that a hierarchical communicator can't apply is refused before anything moves") {
    on_ranks<in_nodes>(4, 2, [](auto& gpus) {
        const tensor<float> x{1, 2};
        CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::max, {.prescale = 2}), hvd::usage_error);
        CHECK_THROWS_AS((void)gpus.plan_allreduce(x.view(), hvd::max, {.prescale = 2}),
                        hvd::usage_error);
        gpus.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[1] == float(2 * gpus.size()));
    });
}

TEST_CASE("nodes that disagree are told, and have no step of which only a half was made") {
    for (const int node : {1, 2})
        on_ranks<in_nodes>(2 * node, node, [node](auto& gpus) {
            const tensor<float> x(std::vector<float>(gpus.rank() < node ? 8 : 16));
            CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum), hvd::mismatch_error);
            if (node == 2) CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum), hvd::peer_error);
        });
}

TEST_CASE("one call through the host") {
    hvd::run_threads(3, [](hvd::communicator<host>& world) {
        const tensor<float> x{1, float(world.rank())};
        {
            auto on_host = hvd::through_host(x.view());
            world.allreduce(on_host, hvd::sum);
        }
        CHECK(x.values() == std::vector<float>{3, 3});
        const auto all = world.allgather(
            hvd::through_host(hvd::tensor_view<const float, hvd::device>(x.view())));
        CHECK(all.values == std::vector<float>(6, 3));
        const auto shaped = [&x](std::size_t rows) {
            return hvd::tensor_view<float, hvd::device, 2>(x.data(), hvd::shape(rows, 2 / rows));
        };
        auto matrix = hvd::through_host(shaped(world.rank() == 0 ? 1 : 2));
        CHECK_THROWS_AS(world.allreduce(matrix, hvd::sum), hvd::mismatch_error);
        try {
            auto on_host = hvd::through_host(x.view());
            on_host.data()[0] = 7;
            throw 1;
        } catch (int) {
        }
        CHECK(x.values()[0] == 3);
    });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("communicators are split, and ended for all") {
    on_policy<hvd::staged<host>>([](auto& gpus) {
        auto half = gpus.split(gpus.rank() % 2);
        const tensor<int> x{1};
        half.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[0] == half.size());
        CHECK(!gpus.split(-1));
        if (gpus.rank() == 0) gpus.abort();
        if (gpus.size() > 1 || gpus.rank() == 0)
            CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum), hvd::peer_error);
    });
}

TEST_CASE("a staged communicator ends after the copies in both directions, before their memory") {
    for (int ranks = 1; ranks <= 4; ++ranks) {
        hvd::run_threads(ranks, [ranks](hvd::communicator<host>& world) {
            cudaStream_t stream{};
            cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
            const tensor<int> x(std::vector<int>(1000, world.rank()));
            cudaDeviceSynchronize();  // the stream does not wait for the copy of the values
            {
                hvd::communicator<hvd::staged<host>> gpus(world);
                gpus.allreduce_async(x.view(), hvd::sum, {.stream = stream}).wait(stream);
                world.barrier();
                emulation::reset();
                world.barrier();
            }
            world.barrier();
            CHECK(emulation::calls_of("cudaStreamSynchronize") == 2 * ranks);
            world.barrier();
            CHECK(x.values() == std::vector<int>(1000, ranks * (ranks - 1) / 2));
            cudaStreamDestroy(stream);
        });
        CHECK(emulation::live_objects() == 0);
    }
}

}  // namespace policies_tests
