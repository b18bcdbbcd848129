// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>

#include "reference.hpp"
#include "support.hpp"

namespace nodes_tests {

using namespace hvd_test;

namespace {
std::atomic<int> library_calls = 0;
}

extern "C" int MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op,
                             MPI_Comm comm) {
    ++library_calls;
    return PMPI_Allreduce(in, out, count, type, op, comm);
}

// Tests that only communicators of several nodes need: nodes of other sizes than two, and the
// library between them.

namespace {

constexpr std::size_t lengths[] = {0, 1, 7, 3000, 100003, 700001};

template <class F>
void on_nodes(F f, hvd::communicator_options options = {}) {
    const failing_rank_does_not_hang guard;
    for (const int node_size : {2, 3}) {
        if (node_size >= launched_ranks()) continue;
        options.node_size = node_size;
        INFO("with nodes of ", node_size, " ranks");
        auto comm = communicator::world(options);
        f(comm);
    }
}

template <class T, class Op>
void check_sums(communicator& comm, const Op& op) {
    const tensor<T> expected = reference<T>(op, comm.size());
    for (const std::size_t n : lengths) {
        INFO(n, " elements");
        tensor<T> x = input<T>(comm.rank(), n);
        comm.allreduce(x, op);
        CHECK(wrong(x, n, expected) == 0);
    }
}

// Returns true if any rank called MPI_Allreduce during f. Ranks without a slice of their own don't.
template <class F>
bool by_the_library(communicator& comm, F f) {
    const int before = library_calls;
    f();
    int calls = library_calls - before;
    comm.allreduce(calls, hvd::max);
    return calls > 0;
}

}  // namespace

TEST_CASE_TEMPLATE("allreduce on nodes of unequal size", T, float, double, hvd::bfloat16,
                   std::int8_t, std::complex<float>) {
    on_nodes([](auto& comm) {
        check_sums<T>(comm, hvd::sum);
        if constexpr (std::is_integral_v<T>)
            check_sums<T>(comm, hvd::average(hvd::rounding::nearest));
        else check_sums<T>(comm, hvd::average);
    });
}

TEST_CASE_TEMPLATE("the library between nodes gives the same sums", T, float, double, std::int32_t,
                   std::complex<float>) {
    on_nodes(
        [](auto& comm) {
            CHECK(by_the_library(comm, [&] { check_sums<T>(comm, hvd::sum); }));
            CHECK(by_the_library(comm, [&] { check_sums<T>(comm, hvd::product); }));
            if constexpr (!is_complex<T>)
                CHECK(by_the_library(comm, [&] { check_sums<T>(comm, hvd::min); }));
            if constexpr (!std::is_integral_v<T>)
                CHECK(by_the_library(comm, [&] { check_sums<T>(comm, hvd::average); }));
            auto pair = comm.split(comm.rank() / 3);
            check_sums<T>(pair, hvd::sum);
        },
        {.mpi_between_nodes = true});
}

TEST_CASE_TEMPLATE("operations that the library lacks go without it", T, hvd::float16,
                   hvd::bfloat16, bool, modular) {
    on_nodes(
        [](auto& comm) {
            std::vector<int> x(100003, comm.rank());
            CHECK(!by_the_library(comm, [&] {
                if constexpr (std::is_same_v<T, bool>) check_sums<T>(comm, hvd::max);
                else check_sums<T>(comm, hvd::sum);
                comm.allreduce(x, [](const int&, const int& b) { return b; });
            }));
            CHECK(x.front() == comm.size() - 1);
            CHECK(x.back() == comm.size() - 1);
        },
        {.mpi_between_nodes = true});
}

TEST_CASE("scales with the library between nodes are applied once") {
    on_nodes(
        [](auto& comm) {
            std::vector<double> x(5003, comm.rank() + 1);
            comm.allreduce(x, hvd::average, {.prescale = 0.5, .postscale = 4});
            CHECK(x.back() == double(comm.size() + 1));
        },
        {.mpi_between_nodes = true});
}

TEST_CASE("a large part of one rank crosses in many chunks") {
    on_nodes([](auto& comm) {
        // Elements are long, their number is odd, and each rank's slice is not a whole number of
        // chunks.
        const std::size_t n = 1300003;
        tensor<std::complex<double>> x(n);
        for (std::size_t i = 0; i < n; ++i) x[i] = {double(i % 1009), double(comm.rank())};
        comm.allreduce(x, hvd::sum);
        std::size_t wrong = 0;
        const double size = comm.size();
        for (std::size_t i = 0; i < n; ++i)
            wrong += x[i] != std::complex<double>(double(i % 1009) * size, size * (size - 1) / 2);
        CHECK(wrong == 0);
    });
}

TEST_CASE("an exception of an operation on one node reaches the ranks of all") {
    on_nodes([](auto& comm) {
        for (const std::size_t n : {std::size_t(10), std::size_t(100003)}) {
            std::vector<int> x(n, 1);
            const int culprit = comm.size() - 1, me = comm.rank();
            const auto f = [&](const int& a, const int& b) {
                if (me == culprit) throw std::runtime_error("no more paper");
                return a + b;
            };
            try {
                comm.allreduce(x, f);
                FAIL_CHECK("no exception");
            } catch (const hvd::peer_error& e) {
                CHECK(me != culprit);
                CHECK(contains(e.what(), "no more paper"));
                CHECK(e.peers() == std::vector<int>{culprit});
            } catch (const std::runtime_error& e) {
                CHECK(me == culprit);
                CHECK(contains(e.what(), "no more paper"));
            }
            check_that_it_works(comm);
        }
    });
}

}  // namespace nodes_tests
