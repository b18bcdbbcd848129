// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Options of NCCL's, and memory of the user.

#include <optional>
#include <string>
#include <thread>

#include "support.hpp"

namespace options_tests {

using namespace device_test;

namespace {

using world_type = hvd::communicator<hvd::threads>;
using gpus_type = hvd::communicator<hvd::nccl>;

ncclConfig_t blocking(int value = 1) {
    return configured([&](ncclConfig_t& c) { c.blocking = value; });
}

// Runs f(gpus) on `least` to 4 ranks, with options of NCCL's.
template <class F>
void with_options(const hvd::nccl_options& options, F f, int least = 1) {
    for (int ranks = least; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks,
                         [&](world_type& world) {
                             hvd::time_limit limit;
                             if (options.config.blocking != 1) limit = 20s;
                             gpus_type gpus(world, {.timeout = limit}, options);
                             f(gpus);
                         },
                         {.node_size = 2});
        CHECK(emulation::live_objects() == 0);
        CHECK(emulation::disagreements().empty());
        emulation::reset();
    }
}

template <class Gpus>
void check_sum(Gpus& gpus) {
    const tensor<int> x{gpus.rank() + 1};
    gpus.allreduce(x.view(), hvd::sum);
    CHECK(x.values()[0] == gpus.size() * (gpus.size() + 1) / 2);
}

}  // namespace

TEST_CASE("NCCL gets the options, and so do all communicators that are derived") {
    const std::string net = "Socket";
    const auto check = [](gpus_type& gpus) {
        if (!gpus) return;
        int priority = 0;
        cudaStreamGetPriority(gpus.stream(), &priority);
        CHECK(priority == -2);
        check_sum(gpus);
        if (gpus.size() == 1) return;  // a rank that is alone has no handle
        const ncclConfig_t config = emulation::config_of(gpus.native_handle());
        CHECK(config.minCTAs == 2);
        CHECK(config.maxCTAs == 8);
        CHECK(config.cgaClusterSize == 0);
        CHECK(config.splitShare == 1);
        CHECK(config.trafficClass == 3);
        CHECK(std::string(config.netName) == "Socket");
        CHECK(config.blocking == 0);
    };
    const ncclConfig_t given = configured([&](ncclConfig_t& c) {
        c.minCTAs = 2;
        c.maxCTAs = 8;
        c.cgaClusterSize = 0;
        c.splitShare = 1;
        c.trafficClass = 3;
        c.netName = net.c_str();
    });
    with_options({.config = given, .stream_priority = -2}, [&](gpus_type& gpus) {
        check(gpus);
        auto local = gpus.local(), cross = gpus.cross(), first = gpus.subset({0}),
             reversed = gpus.split(0, -gpus.rank());
        check(local);
        check(cross);
        check(first);
        check(reversed);
        if (gpus.size() < 3) return;
        const int last = gpus.size() - 1;
        gpus.barrier();
        if (gpus.rank() == last) return gpus.abort();
        auto rest = gpus.shrink(std::vector{last});
        check(rest);
    });
}

TEST_CASE("without options NCCL has its defaults, and does not block") {
    with_options(
        {},
        [](gpus_type& gpus) {
            const ncclConfig_t plain = NCCL_CONFIG_INITIALIZER,
                               config = emulation::config_of(gpus.native_handle());
            CHECK(config.blocking == 0);
            CHECK(config.minCTAs == plain.minCTAs);
            CHECK(config.maxCTAs == plain.maxCTAs);
            CHECK(config.cgaClusterSize == plain.cgaClusterSize);
            CHECK(config.splitShare == plain.splitShare);
            CHECK(config.trafficClass == plain.trafficClass);
            CHECK(config.netName == plain.netName);
            int priority = -1;
            cudaStreamGetPriority(gpus.stream(), &priority);
            CHECK(priority == 0);
        },
        2);
}

TEST_CASE("a communicator may be blocking, with the same results") {
    with_options({.config = blocking()}, [](gpus_type& gpus) {
        if (gpus.size() > 1) CHECK(emulation::config_of(gpus.native_handle()).blocking == 1);
        check_sum(gpus);
        auto local = gpus.local();
        check_sum(local);
        const tensor<float> a{float(gpus.rank())}, b{2, 4};
        auto plan = gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::average);
        plan.run();
        CHECK(a.values()[0] == float(gpus.size() - 1) / 2);
        CHECK(b.values() == std::vector<float>{2, 4});
    });
}

TEST_CASE_TEMPLATE("NCCL gets the options from a combination of backends, and from its parts",
                   Backend, hvd::hierarchical<hvd::nccl, hvd::threads>,
                   hvd::per_operation<hvd::nccl, hvd::staged<hvd::threads>, hvd::nccl>,
                   hvd::per_operation<hvd::threads, hvd::nccl, hvd::threads>,
                   hvd::per_operation<hvd::hierarchical<hvd::nccl, hvd::threads>,
                                      hvd::staged<hvd::threads>, hvd::staged<hvd::threads>>) {
    for (int ranks = 2; ranks <= 4; ++ranks) {
        hvd::run_threads(ranks, [&](world_type& world) {
            const std::string net = "Socket";
            hvd::communicator<Backend> gpus(world, {.timeout = 20s},
                                            {.config = configured([&](ncclConfig_t& c) {
                                                 c.maxCTAs = 11;
                                                 c.netName = net.c_str();
                                             })});
            world.barrier();
            CHECK(emulation::communicators_of(11) == ranks);
            world.barrier();
            auto all = gpus.split(0, -gpus.rank());
            world.barrier();
            CHECK(emulation::communicators_of(11) == 2 * ranks);
            world.barrier();
            CHECK_THROWS_WITH_AS(
                hvd::communicator<Backend>(world, {.timeout = 20s}, {.config = blocking(2)}),
                doctest::Contains(".config.blocking 2, expected 0 or 1"), hvd::usage_error);
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

TEST_CASE("a timeout that a blocking communicator would not keep is refused") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        hvd::run_threads(ranks, [](world_type& world) {
            CHECK_THROWS_WITH_AS(gpus_type(world, {.timeout = 20s}, {.config = blocking()}),
                                 doctest::Contains(".config.blocking and a .timeout of 20000 ms"),
                                 hvd::usage_error);
            gpus_type gpus(world, {}, {.config = blocking()});
            check_sum(gpus);
        });
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("unsuitable options are refused on every rank, and different ones as well") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        hvd::run_threads(ranks, [&](world_type& world) {
            CHECK_THROWS_WITH_AS(gpus_type(world, {.timeout = 20s}, {.config = blocking(-1)}),
                                 doctest::Contains(".config.blocking -1, expected 0 or 1"),
                                 hvd::usage_error);
            if (ranks > 1) {
                const ncclConfig_t no_configuration{};
                CHECK_THROWS_AS(gpus_type(world, {.timeout = 20s}, {.config = no_configuration}),
                                hvd::nccl_error);
            }
            const auto differ = [&](auto set, const char* name) {
                if (ranks == 1) return;
                CHECK_THROWS_WITH_AS(
                    gpus_type(world, {.timeout = 20s}, {.config = configured(set)}),
                    doctest::Contains(name), hvd::mismatch_error);
            };
            const int r = world.rank();
            const std::string net = "net" + std::to_string(r);
            differ([&](ncclConfig_t& c) { c.maxCTAs = r + 1; }, ".config.maxCTAs");
            differ([&](ncclConfig_t& c) { c.splitShare = r > 0; }, ".config.splitShare");
            differ([&](ncclConfig_t& c) { c.trafficClass = r; }, ".config.trafficClass");
            differ([&](ncclConfig_t& c) { c.netName = net.c_str(); }, ".config.netName");
            differ([&](ncclConfig_t& c) { c.nvlsCTAs = r + 1; }, ".config.nvlsCTAs");
            gpus_type gpus(world, {.timeout = 20s});
            check_sum(gpus);
        });
    emulation::answer("ncclGetVersion", 22501);
    const ncclConfig_t of_class_1 = configured([](ncclConfig_t& c) { c.trafficClass = 1; });
    hvd::run_threads(2, [&](world_type& world) {
        CHECK_THROWS_WITH_AS(gpus_type(world, {.timeout = 20s}, {.config = of_class_1}),
                             doctest::Contains("needs NCCL 2.26.2, the library is 2.25.1"),
                             hvd::usage_error);
    });
    emulation::reset();
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("memory of the user is registered until its object ends") {
    on_gpus([](auto& gpus) {
        const tensor<float> pool(std::vector<float>(100, 1)), other(std::vector<float>(10, 1));
        {
            auto first = gpus.register_memory(pool.view());
            CHECK(bool(first) == (gpus.size() > 1));
            auto moved = std::move(first);
            CHECK(!first);
            CHECK(bool(moved) == (gpus.size() > 1));
            if (gpus.rank() == 0) moved = gpus.register_memory(other.view());
            gpus.allreduce(hvd::device_view(pool.data() + 50, 50), hvd::sum);
            CHECK(pool.values()[99] == float(gpus.size()));
            CHECK(pool.values()[0] == 1);
        }
        gpus.barrier();
        const int all = gpus.size() > 1 ? gpus.size() + 1 : 0;
        CHECK(emulation::calls_of("ncclCommRegister") == all);
        CHECK(emulation::calls_of("ncclCommDeregister") == all);
        float* const nothing = nullptr;
        CHECK_THROWS_WITH_AS(static_cast<void>(gpus.register_memory(hvd::device_view(nothing, 3))),
                             doctest::Contains("null pointer with 3 elements"), hvd::usage_error);
        CHECK(!gpus.register_memory(hvd::device_view(nothing, 0)));
    });
}

TEST_CASE("a registration may outlive its communicator") {
    for (int ranks = 1; ranks <= 4; ++ranks) {
        hvd::run_threads(ranks, [](world_type& world) {
            const tensor<float> pool{1, 2, 3};
            std::optional<gpus_type> gpus(std::in_place, world);
            const auto kept = gpus->register_memory(pool.view());
            gpus.reset();
        });
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

TEST_CASE("the threads of one process have a GPU each") {
    for (int ranks = 1; ranks <= 4; ++ranks) {
        hvd::thread_group group(ranks);
        const auto train = [&](int rank) {
            auto world = group.communicator(rank);
            const int own = hvd::pin_device(world);
            CHECK(own == rank);
            gpus_type gpus(world, {.timeout = 20s}), others(world, {.timeout = 20s});
            CHECK(gpus.device() == own);
            const tensor<float> x{float(rank)}, y{1, float(rank)};
            cudaSetDevice((own + 1) % 4);  // calls find their own device, and leave this one
            gpus.allreduce(x.view(), hvd::sum);
            others.allreduce(y.view(), hvd::average);
            gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::max).run();
            int now = -1;
            cudaGetDevice(&now);
            CHECK(now == (own + 1) % 4);
            CHECK(x.values()[0] == float(ranks * (ranks - 1)) / 2);
            CHECK(y.values() == std::vector<float>{1, float(ranks - 1) / 2});
        };
        std::vector<std::thread> threads;
        for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(train, rank);
        train(0);
        for (std::thread& thread : threads) thread.join();
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

}  // namespace options_tests
