// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "measure.hpp"

namespace bench {

// The inputs have sums and averages that are exact in every element type and in any order, so that
// results are compared for equality. They are multiples of the number of ranks, whose sums have few
// digits.
constexpr int period = 4;

inline int input(int rank, std::size_t i, int ranks) {
    return ranks * int((i + std::size_t(rank)) % period);
}

template <class T>
void fill(T* data, std::size_t count, int rank, int ranks, std::size_t first = 0) {
    for (std::size_t i = 0; i < count; ++i) data[i] = T(float(input(rank, first + i, ranks)));
}

/// Counts the elements of `data` that differ from `expected(first + i)`. `first + i` is the
/// position in the whole tensor.
template <class T, class F>
std::size_t count_unequal(const T* data, std::size_t count, F&& expected, std::size_t first = 0) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i)
        wrong += !(float(data[i]) == float(expected(first + i)));
    return wrong;
}

inline float expected_sum(std::size_t i, int ranks) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += float(input(r, i, ranks));
    return sum;
}

inline float expected_average(std::size_t i, int ranks) {
    return expected_sum(i, ranks) / float(ranks);
}

/// Returns a candidate whose call averages the `count` elements at `x` over the ranks, in place.
template <class Comm, class T>
candidate average_in_place(const Comm& comm, std::string name, T* x, std::size_t count,
                           std::function<void()> call) {
    const int rank = comm.rank(), ranks = comm.size();
    return {std::move(name), std::move(call), [=] { fill(x, count, rank, ranks); },
            [=] {
                return count_unequal(x, count,
                                     [=](std::size_t i) { return expected_average(i, ranks); });
            }};
}

}  // namespace bench
