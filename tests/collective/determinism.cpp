// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cstring>

#include "reference.hpp"
#include "support.hpp"

namespace determinism_tests {

using namespace hvd_test;

// The bits of a reduction are those of the sum from rank 0 to the last, inside each node first if
// there are several. They are the same on every rank, on every transport, every time.

namespace {

// Numbers of many magnitudes, so that the order of additions shows. They are the same on every
// platform, since no library's generator makes them.
template <class R>
R number(int rank, std::size_t i) {
    std::uint64_t x = (std::uint64_t(rank) << 32) + i + 1;
    for (int round = 0; round < 3; ++round) x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    const double mantissa = double(std::int64_t(x >> 12)) / double(std::int64_t(1) << 52) - 0.5;
    return R(float(std::ldexp(mantissa, int(x % 13))));
}

template <class T>
T random_element(int rank, std::size_t i) {
    if constexpr (is_complex<T>)
        return T(number<typename T::value_type>(rank, i),
                 number<typename T::value_type>(rank + 100, i));
    else return number<T>(rank, i);
}

// n elements that repeat with a prime period, so that a chunk in a wrong place shows. Computing a
// reference for each element would take too long.
constexpr std::size_t cycle = 4099;

template <class T, class F>
tensor<T> repeating(std::size_t n, F element) {
    tensor<T> result(n);
    for (std::size_t i = 0; i < std::min(n, cycle); ++i) result[i] = element(i);
    for (std::size_t i = cycle; i < n; ++i) result[i] = result[i - cycle];
    return result;
}

template <class T>
tensor<T> random_input(int rank, std::size_t n) {
    return repeating<T>(n, [rank](std::size_t i) { return random_element<T>(rank, i); });
}

// A callable need not commute, so nodes that change the order of the ranks are left out.
std::vector<std::vector<int>> nodes_in_rank_order(const std::vector<std::vector<int>>& nodes) {
    std::vector<int> ranks;
    for (const auto& node : nodes) ranks.insert(ranks.end(), node.begin(), node.end());
    if (std::is_sorted(ranks.begin(), ranks.end())) return nodes;
    std::sort(ranks.begin(), ranks.end());
    return {ranks};
}

// Reduces from the first rank to the last inside each node, then from the first node to the last.
// It uses the type in which hvd promises to accumulate, and rounds once in each.
template <class T, class F>
T in_order(const std::vector<std::vector<int>>& nodes, std::size_t i, F combine) {
    using A = typename hvd::dtype_traits<T>::accumulator;
    const auto fold = [&](const auto& values, const auto& value) {
        A result = static_cast<A>(value(values.front()));
        for (std::size_t k = 1; k < values.size(); ++k)
            result = combine(result, static_cast<A>(value(values[k])));
        return static_cast<T>(result);
    };
    return fold(nodes, [&](const std::vector<int>& ranks) {
        return fold(ranks, [&](int rank) { return random_element<T>(rank, i); });
    });
}

template <class T>
bool same_bits(const T& a, const T& b) {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T, class Values, class Expected>
std::size_t wrong_bits(const Values& values, std::size_t n, Expected expected) {
    if (values.size() != n) return wrong_size;
    std::size_t count = 0;
    for (std::size_t i = 0; i < n; ++i) count += same_bits<T>(values[i], expected(i)) ? 0 : 1;
    return count;
}

constexpr std::size_t many = 70001;

}  // namespace

#define HVD_TEST_ROUNDING \
    float, double, hvd::float16, hvd::bfloat16, std::complex<float>, std::complex<double>

TEST_CASE_TEMPLATE("every reduction has the bits of the serial sum in order", T,
                   HVD_TEST_ROUNDING) {
    on_every_transport([](auto& comm) {
        const auto add = [](const auto& a, const auto& b) { return a + b; };
        const auto nodes = nodes_of(comm);
        const auto expected =
            repeating<T>(many, [&](std::size_t i) { return in_order<T>(nodes, i, add); });
        const auto at = [&](std::size_t i) { return expected[i]; };
        const tensor<T> in = random_input<T>(comm.rank(), many);

        tensor<T> all(many), fused = in, at_root = in;
        comm.allreduce(in, all, hvd::sum);
        CHECK(wrong_bits<T>(all, many, at) == 0);

        int other = 1;
        comm.allreduce(hvd::fuse(other, fused), hvd::sum);
        CHECK(wrong_bits<T>(fused, many, at) == 0);

        const int root = comm.size() - 1;
        comm.reduce(at_root, hvd::sum, hvd::root{root});
        if (comm.rank() == root) CHECK(wrong_bits<T>(at_root, many, at) == 0);

        const part mine(many, comm.rank(), comm.size());
        const auto scattered = comm.reduce_scatter(in, hvd::sum);
        CHECK(wrong_bits<T>(scattered, mine.count,
                            [&](std::size_t i) { return expected[mine.first + i]; }) == 0);
    });
}

TEST_CASE_TEMPLATE("a small tensor has the same bits as the same elements in a large one", T,
                   HVD_TEST_ROUNDING) {
    on_every_transport([](auto& comm) {
        tensor<T> large = random_input<T>(comm.rank(), many),
                  small = random_input<T>(comm.rank(), 5);
        comm.allreduce(large, hvd::average);
        comm.allreduce(small, hvd::average);
        CHECK(wrong_bits<T>(small, 5, [&](std::size_t i) { return large[i]; }) == 0);
    });
}

TEST_CASE_TEMPLATE("a rerun gives the same bits", T, HVD_TEST_ROUNDING) {
    on_every_transport([](auto& comm) {
        tensor<T> first = random_input<T>(comm.rank(), many), second = first;
        comm.allreduce(first, hvd::product);
        comm.barrier();
        auto pending = comm.allreduce_async(second, hvd::product);
        pending.wait();
        CHECK(wrong_bits<T>(second, many, [&](std::size_t i) { return first[i]; }) == 0);
    });
}

TEST_CASE_TEMPLATE("all ranks have the same bits", T, HVD_TEST_ROUNDING) {
    on_every_transport([](auto& comm) {
        tensor<T> x = random_input<T>(comm.rank(), many);
        comm.allreduce(x, hvd::average, {.prescale = 0.3, .postscale = 1.7});
        tensor<T> theirs = x;
        comm.broadcast(theirs, hvd::root{comm.size() - 1});
        CHECK(wrong_bits<T>(x, many, [&](std::size_t i) { return theirs[i]; }) == 0);
    });
}

TEST_CASE("callables that are neither commutative nor exact are applied from rank 0 to the last") {
    on_every_transport([](auto& comm) {
        const auto skewed = [](const float& a, const float& b) { return a * 0.5f + b; };
        const auto nodes = nodes_in_rank_order(nodes_of(comm));
        const auto expected = repeating<float>(
            many, [&](std::size_t i) { return in_order<float>(nodes, i, skewed); });
        tensor<float> x = random_input<float>(comm.rank(), many);
        comm.allreduce(x, skewed);
        CHECK(wrong_bits<float>(x, many, [&](std::size_t i) { return expected[i]; }) == 0);
    });
}

}  // namespace determinism_tests
