// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "reference.hpp"
#include "support.hpp"

namespace reduce_tests {

using namespace hvd_test;

namespace {

template <class Comm, class T, class Op>
void check(Comm& comm, const Op& op, const tensor<T>& in, const tensor<T>& expected, int root) {
    const std::size_t n = in.size();
    INFO(name_of(op), " of ", n, " to rank ", root);
    tensor<T> out(n), in_place = in;
    comm.reduce(in, hvd::into(out), op, hvd::root{root});
    comm.reduce(in_place, op, hvd::root{root});
    if (comm.rank() == root) {
        CHECK(wrong(out, n, expected) == 0);
        CHECK(wrong(in_place, n, expected) == 0);
    } else {
        CHECK(wrong(out, n, [](std::size_t) { return T(); }) == 0);
        CHECK(wrong_input<T>(in_place, n, comm.rank()) == 0);
    }
}

}  // namespace

TEST_CASE_TEMPLATE("reduce gives the root the serial reduction and leaves the others' tensors", T,
                   HVD_TEST_ELEMENTS) {
    on_every_transport([](auto& comm) {
        int root = 0;
        for (const std::size_t n : sizes) {
            const tensor<T> in = input<T>(comm.rank(), n);
            for_each_operation<T>(comm, [&](const auto& op) {
                root = (root + 1) % comm.size();
                check(comm, op, in, reference<T>(op, comm.size()), root);
            });
        }
    });
}

}  // namespace reduce_tests
