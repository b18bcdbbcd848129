// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Scales of direct<mpi> in a program that is compiled and linked with -ffast-math: a NaN is
// not taken for 1.

#include <cstdint>
#include <cstring>
#include <vector>

#include <hvd/mpi.hpp>

#include "hvd_test.hpp"

#if !__FINITE_MATH_ONLY__
#error "this test is for -ffast-math"
#endif

namespace fast_math_tests {

namespace {

// The compiler does not see that this is no number.
double not_a_number() {
    volatile std::uint64_t bits = 0x7ff8000000000000u;
    const std::uint64_t read = bits;
    double x;
    std::memcpy(&x, &read, sizeof x);
    return x;
}

bool all_nan(const std::vector<float>& all) {
    for (const float& x : all)
        if (!hvd::detail::is_nan(x)) return false;
    return true;
}

}  // namespace

TEST_CASE("direct<mpi>: a NaN is a factor, before and after, tensors and fused ones") {
    hvd::communicator<hvd::direct<hvd::mpi>> comm(MPI_COMM_WORLD, hvd::borrow);
    for (const bool before : {true, false}) {
        const hvd::reduce_options scales = before
                                               ? hvd::reduce_options{.prescale = not_a_number()}
                                               : hvd::reduce_options{.postscale = not_a_number()};
        std::vector<float> x(10, 1), y(10, 1), z(10, 1);
        comm.allreduce(x, hvd::sum, scales);
        comm.allreduce(hvd::fuse(y, z), hvd::sum, scales);
        CHECK(all_nan(x));
        CHECK(all_nan(y));
        CHECK(all_nan(z));
        int whole = 1;
        CHECK_THROWS_AS(comm.allreduce(whole, hvd::sum, scales), hvd::usage_error);
    }
    std::vector<float> x(10, 1), y(10, 1);
    const hvd::reduce_options scales = {.prescale = not_a_number()};
    CHECK_THROWS_AS(comm.allreduce(x, hvd::max, scales), hvd::usage_error);
    CHECK_THROWS_AS(comm.allreduce(hvd::fuse(x, y), hvd::max, scales), hvd::usage_error);
}

}  // namespace fast_math_tests
