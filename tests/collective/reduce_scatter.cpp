// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "reference.hpp"
#include "support.hpp"

namespace reduce_scatter_tests {

using namespace hvd_test;

namespace {

template <class Comm, class T, class Op>
void check(Comm& comm, const Op& op, const tensor<T>& in, const tensor<T>& expected) {
    INFO(name_of(op), " of ", in.size());
    const part mine(in.size(), comm.rank(), comm.size());
    tensor<T> out(mine.count), own = in;
    const auto result = comm.reduce_scatter(in, op);
    comm.reduce_scatter(in, op, hvd::into(out));
    comm.reduce_scatter(own, op, hvd::into(hvd::view(own.data() + mine.first, mine.count)));
    CHECK(wrong(result, mine.count, expected, mine.first) == 0);
    CHECK(wrong(out, mine.count, expected, mine.first) == 0);
    CHECK(wrong_input<T>(in, in.size(), comm.rank()) == 0);
    std::copy_n(own.data() + mine.first, mine.count, out.data());
    CHECK(wrong(out, mine.count, expected, mine.first) == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("reduce_scatter gives each rank its part of the serial reduction", T,
                   HVD_TEST_ELEMENTS) {
    on_every_transport([](auto& comm) {
        for (const std::size_t n : sizes) {
            const tensor<T> in = input<T>(comm.rank(), n);
            for_each_operation<T>(
                comm, [&](const auto& op) { check(comm, op, in, reference<T>(op, comm.size())); });
        }
    });
}

}  // namespace reduce_scatter_tests
