// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "reference.hpp"
#include "support.hpp"

namespace movement_tests {

using namespace hvd_test;

// Collectives that move elements and do not look at them, for every element type and size.

namespace {

// Returns rank r's elements in a result of equal parts, one after another.
template <class T>
tensor<T> piece_of(const auto& values, std::size_t rank, std::size_t n) {
    tensor<T> piece(n);
    for (std::size_t i = 0; i < n; ++i) piece[i] = T(values[rank * n + i]);
    return piece;
}

template <class T, class Comm>
void check_gathered(Comm& comm, const auto& values, std::size_t n) {
    REQUIRE(values.size() == n * size_of(comm));
    for (int r = 0; r < comm.size(); ++r)
        CHECK(wrong_input<T>(piece_of<T>(values, std::size_t(r), n), n, r) == 0);
}

}  // namespace

#define HVD_TEST_MOVED HVD_TEST_ELEMENTS, hvd_test::triple

TEST_CASE_TEMPLATE("broadcast gives every rank each root's elements", T, HVD_TEST_MOVED) {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root)
            for (const std::size_t n : sizes) {
                if (n > 7 && root > 0 && root < comm.size() - 1)
                    continue;  // short ones have every root
                const tensor<T> in = input<T>(comm.rank(), n);
                tensor<T> in_place = in, out(n);
                comm.broadcast(in_place, hvd::root{root});
                comm.broadcast(in, hvd::into(out), hvd::root{root});
                CHECK(wrong_input<T>(in_place, n, root) == 0);
                CHECK(wrong_input<T>(out, n, root) == 0);
                CHECK(wrong_input<T>(in, n, comm.rank()) == 0);
            }
    });
}

TEST_CASE_TEMPLATE("allgather gives every rank all elements in rank order", T, HVD_TEST_MOVED) {
    on_every_transport([](auto& comm) {
        for (const std::size_t n : sizes) {
            const tensor<T> in = input<T>(comm.rank(), n);
            const auto result = comm.allgather(in);
            CHECK(result.counts == std::vector<std::size_t>(size_of(comm), n));
            CHECK(result.displacements[size_of(comm) - 1] == (size_of(comm) - 1) * n);
            check_gathered<T>(comm, result.values, n);

            tensor<T> out(n * size_of(comm));
            comm.allgather(in, hvd::into(out));
            check_gathered<T>(comm, out, n);

            tensor<T> in_place(n * size_of(comm));
            const auto mine = hvd::view(in_place.data() + rank_of(comm) * n, n);
            std::copy_n(in.data(), n, mine.data());
            comm.allgather(mine, hvd::into(in_place));
            check_gathered<T>(comm, in_place, n);
        }
    });
}

TEST_CASE_TEMPLATE("gather gives the root all elements in rank order and the others nothing", T,
                   HVD_TEST_MOVED) {
    on_every_transport([](auto& comm) {
        for (const std::size_t n : sizes) {
            const int root = comm.size() - 1;
            const tensor<T> in = input<T>(comm.rank(), n);
            const auto result = comm.gather(in, hvd::root{root});
            tensor<T> out(comm.rank() == root ? n * size_of(comm) : 0);
            comm.gather(in, hvd::into(out), hvd::root{root});
            if (comm.rank() == root) {
                CHECK(result.counts == std::vector<std::size_t>(size_of(comm), n));
                check_gathered<T>(comm, result.values, n);
                check_gathered<T>(comm, out, n);
            } else {
                CHECK(result.values.empty());
            }
        }
    });
}

TEST_CASE_TEMPLATE("scatter gives each rank its part of the root's elements", T, HVD_TEST_MOVED) {
    on_every_transport([](auto& comm) {
        for (const std::size_t n : sizes) {
            const int root = comm.size() / 2;
            const tensor<T> in = input<T>(comm.rank(), comm.rank() == root ? n : 0);
            const part mine(n, comm.rank(), comm.size());
            const auto result = comm.scatter(in, hvd::root{root});
            tensor<T> out(mine.count);
            comm.scatter(in, hvd::into(out), hvd::root{root});
            CHECK(wrong_input<T>(result, mine.count, root, mine.first) == 0);
            CHECK(wrong_input<T>(out, mine.count, root, mine.first) == 0);
        }
    });
}

TEST_CASE_TEMPLATE("alltoall gives each rank its share of every rank's elements", T,
                   HVD_TEST_MOVED) {
    on_every_transport([](auto& comm) {
        for (const std::size_t total : sizes) {
            const std::size_t n = total / size_of(comm);
            const tensor<T> in = input<T>(comm.rank(), n * size_of(comm));
            const auto result = comm.alltoall(in);
            tensor<T> out(in.size());
            comm.alltoall(in, hvd::into(out));
            CHECK(result.counts == std::vector<std::size_t>(size_of(comm), n));
            for (int r = 0; r < comm.size(); ++r) {
                const std::size_t first = rank_of(comm) * n;
                CHECK(wrong_input<T>(piece_of<T>(result.values, std::size_t(r), n), n, r, first) ==
                      0);
                CHECK(wrong_input<T>(piece_of<T>(out, std::size_t(r), n), n, r, first) == 0);
            }
        }
    });
}

}  // namespace movement_tests
