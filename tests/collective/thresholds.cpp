// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <numeric>
#include <set>

#include "reference.hpp"
#include "support.hpp"

namespace thresholds_tests {

using namespace hvd_test;

// Sizes around every threshold inside hvd (core/tuning.hpp): the kernels' blocks, a window of
// shared memory, a peer's share of it, the chunks between nodes, and the limits between the
// algorithms.

namespace {

template <std::size_t N>
struct cells_of {
    std::int32_t cells[N];
};

namespace tuning = hvd::detail::tuning;

void around(std::set<std::size_t>& sizes, std::size_t n) {
    sizes.insert({n - 1, n, n + 1, 2 * n + 1});
}

// Returns the sizes in elements that one rank sends to another.
template <class T>
std::set<std::size_t> thresholds(int ranks, std::size_t window_bytes) {
    const std::size_t n = std::size_t(ranks), peers = std::size_t(std::max(ranks - 1, 1));
    const auto share_of = [](std::size_t bytes, std::size_t of) {
        return bytes / of / tuning::cache_line * tuning::cache_line;
    };
    std::set<std::size_t> sizes;
    around(sizes, tuning::running_block / sizeof(typename hvd::dtype_traits<T>::accumulator));
    for (const std::size_t bytes :
         {share_of(window_bytes, peers), share_of(window_bytes, n), window_bytes,
          tuning::cached_block, tuning::own_copy_from, tuning::chunk_bytes})
        around(sizes, bytes / sizeof(T));
    // The limits that hold for whole tensors.
    for (const std::size_t whole :
         {tuning::least_in_place, tuning::most_by_all / n, tuning::most_by_all_crowded / n,
          tuning::most_by_two_16_bit, tuning::most_in_slices, tuning::most_broadcast_whole})
        sizes.insert({whole / n / sizeof(T), whole / n / sizeof(T) + 1});
    // The same limits for a call that moves as many bytes as one rank sends to another.
    for (const std::size_t bytes : {tuning::least_in_place, tuning::most_broadcast_whole,
                                    tuning::least_private, 2 * tuning::least_private})
        sizes.insert({bytes / sizeof(T), bytes / sizeof(T) + 1});
    return sizes;
}

template <class T, class Comm>
void check_reductions(Comm& comm, std::size_t share) {
    const tensor<T> expected = reference<T>(hvd::sum, comm.size());
    // In the last case only the first rank has one element more.
    for (const std::size_t n : {share * size_of(comm), share * size_of(comm) + 1}) {
        tensor<T> x = input<T>(comm.rank(), n);
        const part mine(n, comm.rank(), comm.size());
        const auto scattered = comm.reduce_scatter(x, hvd::sum);
        CHECK(wrong(scattered, mine.count, expected, mine.first) == 0);
        comm.allreduce(x, hvd::sum);
        CHECK(wrong(x, n, expected) == 0);
    }
}

template <class T, class Comm>
void check_movements(Comm& comm, std::size_t n) {
    const tensor<T> mine = input<T>(comm.rank(), n);
    tensor<T> from_last = mine;
    comm.broadcast(from_last, hvd::root{comm.size() - 1});
    CHECK(wrong_input<T>(from_last, n, comm.size() - 1) == 0);

    const auto all = comm.allgather(mine);
    const auto shuffled = comm.alltoall(input<T>(comm.rank(), n * size_of(comm)));
    REQUIRE(all.values.size() == n * size_of(comm));
    REQUIRE(shuffled.values.size() == n * size_of(comm));
    for (std::size_t r = 0; r < size_of(comm); ++r) {
        CHECK(wrong_input<T>(std::span(all.values).subspan(r * n, n), n, int(r)) == 0);
        CHECK(wrong_input<T>(std::span(shuffled.values).subspan(r * n, n), n, int(r),
                             rank_of(comm) * n) == 0);
    }
}

template <class T>
void check_thresholds(std::size_t window_bytes) {
    on_every_transport(
        [window_bytes](auto& comm) {
            for (const std::size_t share : thresholds<T>(comm.size(), window_bytes)) {
                INFO(share, " elements from rank to rank");
                check_reductions<T>(comm, share);
                check_movements<T>(comm, share);
            }
        },
        {.shared_memory_bytes = tuning::windows * window_bytes});
}

}  // namespace

}  // namespace thresholds_tests

template <std::size_t N>
struct hvd::dtype_traits<thresholds_tests::cells_of<N>>
    : hvd::transport_only<thresholds_tests::cells_of<N>> {
    static constexpr std::string_view name = "cells";
};

namespace thresholds_tests {

TEST_CASE_TEMPLATE("results are right around every internal threshold", T, float, hvd::bfloat16) {
    check_thresholds<T>(tuning::window_bytes);
}

#if !defined(HVD_TEST_QUEUES)
// This is the smallest window for up to seven ranks. It gives many rounds, and chunks whose size is
// no power of two.
TEST_CASE_TEMPLATE("results are right around every threshold of a small window", T, float,
                   hvd::bfloat16) {
    check_thresholds<T>(28 * tuning::KiB);
}
#endif

namespace {

// Reduces three elements of N cells each.
template <std::size_t N>
void check_large_elements(std::size_t window_bytes) {
    on_every_transport(
        [](auto& comm) {
            using element = cells_of<N>;
            const auto add = [](const element& a, const element& b) {
                element sum;
                for (std::size_t i = 0; i < N; ++i) sum.cells[i] = a.cells[i] + b.cells[i];
                return sum;
            };
            std::vector<element> x(3);
            for (element& e : x)
                std::iota(std::begin(e.cells), std::end(e.cells), 1000 * comm.rank());
            comm.allreduce(x, add);
            const int ranks = comm.size() * (comm.size() - 1) / 2;
            std::size_t wrong = 0;
            for (const element& e : x)
                for (std::size_t i = 0; i < N; ++i)
                    wrong += e.cells[i] != int(i) * comm.size() + 1000 * ranks;
            CHECK(wrong == 0);
        },
        {.shared_memory_bytes = tuning::windows * window_bytes});
}

}  // namespace

TEST_CASE("elements larger than a window are reduced whole") {
    check_large_elements<70000>(tuning::window_bytes);
}

TEST_CASE("elements larger than a peer's share of a window are reduced whole") {
    check_large_elements<5000>(28 * tuning::KiB);
}

}  // namespace thresholds_tests
