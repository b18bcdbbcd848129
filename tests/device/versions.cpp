// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Programs run with an older library of NCCL than they were compiled with. The emulation ends the
// program at the call of a function that this library lacks.

#include <numeric>
#include <string>

#include "support.hpp"

namespace versions_tests {

using namespace device_test;

namespace {

using world_type = hvd::communicator<hvd::threads>;
using gpus_type = hvd::communicator<hvd::nccl>;

constexpr int versions[] = {21901, 22005, 22606, 22703, 22803, 22807};

// Runs f(gpus, version) with each version on 1 to 4 ranks.
template <class F>
void with_older_nccl(F f) {
    for (const int version : versions)
        for (int ranks = 1; ranks <= 4; ++ranks) {
            INFO("version ", version, " on ", ranks, " ranks");
            emulation::reset();
            emulation::answer("ncclGetVersion", version);
            hvd::run_threads(ranks, [&](world_type& world) {
                gpus_type gpus(world, {.timeout = 20s});
                f(gpus, version);
            });
            CHECK(emulation::live_objects() == 0);
            CHECK(emulation::disagreements().empty());
        }
    emulation::reset();
}

}  // namespace

TEST_CASE("every collective has its result with an older NCCL") {
    with_older_nccl([](gpus_type& gpus, int) {
        const int n = gpus.size(), r = gpus.rank(), last = n - 1;
        std::vector<int> everybodys(static_cast<std::size_t>(n)), received;
        std::iota(everybodys.begin(), everybodys.end(), 0);
        for (int p = 0; p < n; ++p) received.push_back(10 * p + r);
        const auto own = [&] {
            std::vector<int> values;
            for (int p = 0; p < n; ++p) values.push_back(10 * r + p);
            return values;
        };
        const std::vector<int> none(std::size_t(n), -1);

        const tensor<int> x{r}, all(none), parts(own()), back(none), one{-1};
        gpus.allgather(x.view(), hvd::into(all.view()));
        CHECK(all.values() == everybodys);
        gpus.alltoall(parts.view(), hvd::into(back.view()));
        CHECK(back.values() == received);
        gpus.gather(x.view(), hvd::into(back.view()), hvd::root{last});
        CHECK(back.values() == (r == last ? everybodys : received));
        gpus.scatter(all.view(), hvd::into(one.view()), hvd::root{last});
        CHECK(one.values()[0] == r);
        gpus.broadcast(x.view(), hvd::root{last});
        CHECK(x.values()[0] == last);
        gpus.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[0] == n * last);
        gpus.barrier();
        auto half = gpus.split(r % 2);
        CHECK(half.size() == (n + 1 - r % 2) / 2);
        const tensor<int> sum{1};
        half.allreduce(sum.view(), hvd::sum);
        CHECK(sum.values()[0] == half.size());
    });
}

TEST_CASE("an arena is registered with NCCL, in a window or, with an older one, as a buffer") {
    with_older_nccl([](gpus_type& gpus, int version) {
        {
            hvd::device_arena arena(gpus, 4096);
            auto x = arena.tensor<float>(hvd::shape(8));
            const std::vector<float> ones(8, 1);
            cudaMemcpy(x.data(), ones.data(), 32, cudaMemcpyHostToDevice);
            auto plan = gpus.plan_allreduce(hvd::fuse(x), hvd::sum);
            plan.run();
            std::vector<float> result(8);
            cudaMemcpy(result.data(), x.data(), 32, cudaMemcpyDeviceToHost);
            CHECK(result == std::vector<float>(8, float(gpus.size())));
            gpus.barrier();
        }
        gpus.barrier();
        const int each = gpus.size() > 1 ? gpus.size() : 0;
        CHECK(emulation::calls_of("ncclCommRegister") == (version < 22703 ? each : 0));
        CHECK(emulation::calls_of("ncclCommWindowRegister") == (version < 22703 ? 0 : each));
    });
}

TEST_CASE("a call that is given up ends on every rank, by an abort where NCCL can't revoke") {
    with_older_nccl([](gpus_type& gpus, int) {
        if (gpus.size() == 1) return;
        const tensor<float> x{1};
        gpus.allreduce(x.view(), hvd::sum);
        if (gpus.rank() > 0) {
            auto pending = gpus.allreduce_async(x.view(), hvd::sum);
            gpus.abort();
            CHECK_THROWS_WITH_AS(pending.wait(), doctest::Contains("abort()"), hvd::peer_error);
        } else {
            gpus.abort();
        }
        CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);
    });
}

TEST_CASE("shrink says which NCCL it needs") {
    with_older_nccl([](gpus_type& gpus, int version) {
        if (gpus.size() == 1) return;
        const int last = gpus.size() - 1;
        if (version < 22807) {
            CHECK_THROWS_WITH_AS(static_cast<void>(gpus.shrink(std::vector{last})),
                                 doctest::Contains("shrink on rank"), hvd::usage_error);
            CHECK_THROWS_WITH_AS(static_cast<void>(gpus.shrink(std::vector{last})),
                                 doctest::Contains("needs NCCL 2.28.7, the library is 2."),
                                 hvd::usage_error);
            gpus.barrier();
        } else if (gpus.rank() < last) {
            auto rest = gpus.shrink(std::vector{last});
            CHECK(rest.size() == last);
        }
    });
}

TEST_CASE("an NCCL that is too old is refused with its version") {
    emulation::reset();
    emulation::answer("ncclGetVersion", 21805);
    for (int ranks = 1; ranks <= 4; ++ranks)
        hvd::run_threads(ranks, [](world_type& world) {
            CHECK_THROWS_WITH_AS(gpus_type{world},
                                 doctest::Contains("has version 2.18.5, hvd needs 2.19.1 or later"),
                                 hvd::usage_error);
        });
    emulation::reset();
    CHECK(emulation::live_objects() == 0);
}

}  // namespace versions_tests
