// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"

#include <cstddef>
#include <cstdint>

namespace hvd::inline v0::detail {

// The slice of a tensor that one rank reduces or steps: all of it without sharding.
struct owned_slice {
    std::size_t begin = 0, count = 0;
};

// The elements in the slice of every rank but the last ones, which have fewer. Slices begin at
// multiples of 16 bytes, as launches like them.
template <class T>
std::size_t slice_length(std::size_t count, int ranks) {
    constexpr std::size_t vector = 16 / sizeof(T);
    const std::size_t each = (count + std::size_t(ranks) - 1) / std::size_t(ranks);
    return (each + vector - 1) / vector * vector;
}

template <class T>
owned_slice slice_of(std::size_t count, int rank, int ranks) {
    const std::size_t each = slice_length<T>(count, ranks), begin = std::size_t(rank) * each;
    if (begin >= count) return {count, 0};
    return {begin, count - begin < each ? count - begin : each};
}

// Calls f(i, rank, slice, place) for every slice of the tensors with these sizes, in the layout
// that a reduce_scatter takes: first the slices of rank 0, and so on. `place` is the slice's first
// element there. It returns the number of elements of one rank, which includes the gaps that make
// all ranks equal, and `more` behind them.
template <class T, class Sizes, class F>
std::size_t for_each_slice(const Sizes& sizes, int ranks, F f, std::size_t more = 0) {
    std::size_t own = more;
    for (const std::size_t size : sizes) own += slice_length<T>(size, ranks);
    for (int r = 0; r < ranks; ++r) {
        std::size_t place = std::size_t(r) * own;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            f(i, r, slice_of<T>(sizes[i], r, ranks), place);
            place += slice_length<T>(sizes[i], ranks);
        }
    }
    return own;
}

// With error feedback a rank rounds this slice of a tensor. Slices begin at multiples of 16 bytes
// of 16-bit floats.
using feedback_element = std::uint16_t;

inline owned_slice feedback_slice(std::size_t count, int rank, int ranks) {
    return slice_of<feedback_element>(count, rank, ranks);
}

}  // namespace hvd::inline v0::detail
