// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Scales of device tensors in a program that is compiled and linked with -ffast-math: a NaN is not
// taken for 1.

#include <cstdint>
#include <cstring>

#include "support.hpp"

#if !__FINITE_MATH_ONLY__
#error "this test is for -ffast-math"
#endif

namespace fast_math_tests {

using namespace device_test;

namespace {

// The compiler does not see that this is no number.
double not_a_number() {
    volatile std::uint64_t bits = 0x7ff8000000000000u;
    const std::uint64_t read = bits;
    double x;
    std::memcpy(&x, &read, sizeof x);
    return x;
}

}  // namespace

TEST_CASE("NCCL is given no factor that is not a number") {
    on_gpus([](auto& gpus) {
        const tensor<float> x{1};
        const char* const refused = "is out of the range in which";
        CHECK_THROWS_WITH_AS(gpus.allreduce(x.view(), hvd::sum, {.prescale = not_a_number()}),
                             doctest::Contains(refused), hvd::usage_error);
        CHECK_THROWS_WITH_AS(gpus.allreduce(x.view(), hvd::average, {.postscale = not_a_number()}),
                             doctest::Contains(refused), hvd::usage_error);
        CHECK_THROWS_WITH_AS(gpus.allreduce(x.view(), hvd::max, {.prescale = not_a_number()}),
                             doctest::Contains("can't be scaled by"), hvd::usage_error);
        gpus.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[0] == float(gpus.size()));
    });
}

TEST_CASE("a hierarchical maximum is not scaled by what is not a number") {
    hvd::run_threads(
        4,
        [](hvd::communicator<hvd::threads>& world) {
            hvd::communicator<hvd::hierarchical<hvd::nccl, hvd::threads>> gpus(world,
                                                                               {.timeout = 10s});
            const tensor<float> x{1};
            CHECK_THROWS_WITH_AS(gpus.allreduce(x.view(), hvd::max, {.prescale = not_a_number()}),
                                 doctest::Contains("only sums and averages of floats"),
                                 hvd::usage_error);
            CHECK_THROWS_WITH_AS(gpus.allreduce(x.view(), hvd::max, {.postscale = not_a_number()}),
                                 doctest::Contains("only sums and averages of floats"),
                                 hvd::usage_error);
            gpus.allreduce(x.view(), hvd::max);
            CHECK(x.values()[0] == 1);
        },
        {.node_size = 2});
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

}  // namespace fast_math_tests
