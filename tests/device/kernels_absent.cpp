// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// A program without hvd's kernels: what needs one is refused, and all else works.

#include "support.hpp"

namespace kernels_absent_tests {

using namespace device_test;

namespace {

// The call throws on every rank, and names the file to compile and the symbol for the linker.
template <class F>
void check_refused(F call) {
    try {
        call();
        FAIL("this needs a kernel");
    } catch (const hvd::usage_error& e) {
        const std::string said = e.what();
        CAPTURE(said);
        CHECK(said.find("hvd/kernel/cuda/kernels.cuh") != std::string::npos);
        CHECK(said.find("-Wl,-u,hvd_kernels") != std::string::npos);
    }
}

}  // namespace

TEST_CASE("without kernels a plan that packs is refused, and the communicator works on") {
    on_gpus(
        [](auto& gpus) {
            const tensor<float> a{1, 2}, b{3};
            const auto both = hvd::fuse(a.view(), b.view());
            check_refused([&] { (void)gpus.plan_allreduce(both, hvd::sum); });
            check_refused([&] { (void)gpus.plan_broadcast(both, hvd::root{0}); });
            check_refused([&] {
                (void)gpus.plan_allreduce(a.view(), hvd::sum, {}, hvd::codec::cast<hvd::bfloat16>);
            });
            const tensor<hvd::bfloat16> narrow{hvd::bfloat16(1.0f)};
            check_refused([&] { gpus.allreduce(narrow.view(), hvd::sum, {.prescale = 0.3}); });
            gpus.allreduce(both, hvd::sum);
            CHECK(a.values()[1] == float(2 * gpus.size()));
            CHECK(b.values()[0] == float(3 * gpus.size()));
        },
        2);
}

TEST_CASE("without kernels plans that pack nothing work") {
    on_gpus([](auto& gpus) {
        const tensor<float> a{1, 2}, b{3}, alone{4};
        auto apart =
            gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum, {.pack_below = 0});
        auto single = gpus.plan_allreduce(alone.view(), hvd::sum);
        CHECK(apart.packed_bytes() == 0);
        CHECK(single.packed_bytes() == 0);
        apart.run();
        single.run();
        CHECK(a.values()[1] == float(2 * gpus.size()));
        CHECK(b.values()[0] == float(3 * gpus.size()));
        CHECK(alone.values()[0] == float(4 * gpus.size()));
    });
}

TEST_CASE("without kernels tensors of two types are scaled, each by NCCL's sum of its own type") {
    on_gpus([](auto& gpus) {
        const tensor<float> a{1, 2};
        const tensor<double> b{3, 4};
        auto scaled = gpus.plan_allreduce(hvd::fuse(a.view(), b.view()), hvd::sum,
                                          {.prescale = 0.25, .pack_below = 0});
        scaled.run();
        const double n = gpus.size();
        CHECK(a.values() == std::vector<float>{0.25f * float(n), 0.5f * float(n)});
        CHECK(b.values() == std::vector<double>{0.75 * n, 1.0 * n});
    });
}

}  // namespace kernels_absent_tests
