// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "reference.hpp"
#include "support.hpp"

namespace allreduce_tests {

using namespace hvd_test;

namespace {

template <class Comm, class T, class Op>
void check(Comm& comm, const Op& op, const tensor<T>& in, const tensor<T>& expected) {
    const std::size_t n = in.size();
    INFO(name_of(op), " of ", n);
    tensor<T> out(n), in_place = in;
    comm.allreduce(in, out, op);
    comm.allreduce(in_place, op);
    CHECK(wrong(out, n, expected) == 0);
    CHECK(wrong(in_place, n, expected) == 0);
    CHECK(wrong_input<T>(in, n, comm.rank()) == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("allreduce equals the serial reduction, in place and out of place", T,
                   HVD_TEST_ELEMENTS) {
    on_every_transport([](auto& comm) {
        for (const std::size_t n : sizes) {
            const tensor<T> in = input<T>(comm.rank(), n);
            for_each_operation<T>(
                comm, [&](const auto& op) { check(comm, op, in, reference<T>(op, comm.size())); });
        }
    });
}

}  // namespace allreduce_tests
