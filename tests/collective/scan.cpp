// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "reference.hpp"
#include "support.hpp"

namespace scan_tests {

using namespace hvd_test;

namespace {

template <class T, class Comm, class Op>
void check_scan(Comm& comm, const Op& op, const tensor<T>& in) {
    const std::size_t n = in.size();
    const tensor<T> expected = reference<T>(op, comm.rank() + 1);
    tensor<T> out(n), in_place = in;
    comm.scan(in, out, op);
    comm.scan(in_place, op);
    CHECK(wrong(out, n, expected) == 0);
    CHECK(wrong(in_place, n, expected) == 0);
}

// Rank 0 has no result by an operation of the user, and with elements of the user.
template <class T, class Comm, class Op>
void check_exscan(Comm& comm, const Op& op, const tensor<T>& in) {
    const std::size_t n = in.size();
    tensor<T> out = input<T>(comm.size(), n), in_place = in;
    comm.exscan(in, out, op);
    comm.exscan(in_place, op);
    constexpr bool stays = hvd::detail::is_custom<Op> || std::is_same_v<T, modular>;
    if (comm.rank() == 0 && stays) {
        CHECK(wrong_input<T>(out, n, comm.size()) == 0);
        CHECK(wrong_input<T>(in_place, n, 0) == 0);
    } else if (comm.rank() == 0) {
        if constexpr (!stays) {
            const T none = of_none<T>(op);
            CHECK(wrong(out, n, [&](std::size_t) { return none; }) == 0);
            CHECK(wrong(in_place, n, [&](std::size_t) { return none; }) == 0);
        }
    } else {
        const tensor<T> expected = reference<T>(op, comm.rank());
        CHECK(wrong(out, n, expected) == 0);
        CHECK(wrong(in_place, n, expected) == 0);
    }
}

}  // namespace

TEST_CASE_TEMPLATE(
    "scan gives rank r the serial reduction of ranks 0 to r, exscan that of the ranks before it", T,
    HVD_TEST_ELEMENTS) {
    on_every_transport([](auto& comm) {
        for (const std::size_t n : sizes) {
            const tensor<T> in = input<T>(comm.rank(), n);
            for_each_operation<T>(comm, [&](const auto& op) {
                INFO(name_of(op), " of ", n);
                check_scan(comm, op, in);
                check_exscan(comm, op, in);
            });
        }
    });
}

}  // namespace scan_tests
