// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <set>

#include "reference.hpp"
#include "support.hpp"

using namespace hvd_test;

// Sizes around every threshold inside hvd (core/tuning.hpp): the kernels' blocks, a window of
// shared memory, a peer's share of it, the chunks between nodes, and the limits between the
// algorithms.

namespace {

struct huge {
    std::int32_t cells[70000];
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
    for (const std::size_t bytes : {tuning::least_in_place, tuning::most_broadcast_whole})
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
        {.window_bytes = window_bytes});
}

}  // namespace

template <>
struct hvd::dtype_traits<huge> : hvd::transport_only<huge> {
    static constexpr std::string_view name = "huge";
};

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

TEST_CASE("elements larger than a window are reduced whole") {
    on_every_transport([](auto& comm) {
        const auto add = [](const huge& a, const huge& b) {
            huge sum;
            for (std::size_t i = 0; i < std::size(sum.cells); ++i)
                sum.cells[i] = a.cells[i] + b.cells[i];
            return sum;
        };
        std::vector<huge> x(3);
        for (huge& element : x)
            std::fill(std::begin(element.cells), std::end(element.cells), comm.rank() + 1);
        comm.allreduce(x, add);
        const int expected = comm.size() * (comm.size() + 1) / 2;
        for (const huge& element : x)
            CHECK(std::count(std::begin(element.cells), std::end(element.cells), expected) ==
                  std::ssize(element.cells));
    });
}
