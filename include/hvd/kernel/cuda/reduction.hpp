// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include "../../core/concepts.hpp"
#include "registry.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The numbers that the kernel reduces in place of an element. Types with the same layout share its
// code.
struct reduced_numbers {
    dtype id;
    int op;
    unsigned each;  // how many of them make one element
};

constexpr reduced_numbers numbers_of(dtype id, int op) {
    const bool ordered = op == op::min::id || op == op::max::id;
    switch (id) {
        case dtype::boolean:
            if (op == op::max::id || op == op::logical_or::id) op = op::bit_or::id;
            if (op == op::min::id || op == op::logical_and::id) op = op::bit_and::id;
            return {dtype::uint8, op, 1};
        case dtype::byte: return {dtype::uint8, op, 1};
        case dtype::complex64: return {dtype::float32, op, 2};
        case dtype::complex128: return {dtype::float64, op, 2};
        case dtype::int8:
        case dtype::int16:
        case dtype::int32:
        case dtype::int64:
            return {ordered || op == op::average::id
                        ? id
                        : dtype(int(id) + int(dtype::uint8) - int(dtype::int8)),
                    op, 1};
        default: return {id, op, 1};
    }
}

constexpr std::size_t bytes_of_number(dtype id) {
    switch (id) {
        case dtype::int8:
        case dtype::uint8: return 1;
        case dtype::int16:
        case dtype::uint16:
        case dtype::float16:
        case dtype::bfloat16: return 2;
        case dtype::int32:
        case dtype::uint32:
        case dtype::float32: return 4;
        default: return 8;
    }
}

// True for the operations among those of `reducible` that the kernel can do.
template <class T, class Op>
constexpr bool reduced_by_kernel() {
    using plain = plain_op_t<Op>;
    constexpr bool adds = std::is_same_v<plain, op::sum> || std::is_same_v<plain, op::average>;
    constexpr bool logical =
        std::is_same_v<plain, op::logical_and> || std::is_same_v<plain, op::logical_or>;
    if constexpr (dtype_traits<T>::id == dtype::user || is_custom<plain> ||
                  std::is_same_v<plain, op::adasum>)
        return false;
    else if constexpr (is_rounded<Op>)
        return is_integer_element<T> && std::is_same_v<plain, op::average>;
    else if constexpr (is_complex_element<T>) return adds;
    else return !logical || dtype_traits<T>::id == dtype::boolean;
}

// A node has fewer GPUs than this. The addresses of all are an argument of the kernel.
constexpr int most_reduced_ranks = 64;

// The arguments of one launch. Element i of every output is the reduction of element i of all
// inputs, in their order, with the same bits as on the host. An output may be exactly an input.
struct reduction_launch {
    const std::byte* in[most_reduced_ranks];
    std::byte* out[most_reduced_ranks];
    std::uint64_t count;  // counts numbers, as `head` does
    // The elements before the first that is aligned to 16 bytes, or `count` if inputs and outputs
    // are not aligned alike.
    std::uint64_t head;
    double prescale, postscale;
    int ranks, places;
    int divisor;  // the communicator's size for an average, otherwise 0
    int op;
    rounding mode;
    dtype id;
};

inline bool has_reductions() { return kernels.reduction != nullptr; }

inline cudaError_t launch_reduction(const reduction_launch& launch, cudaStream_t stream) {
    return kernels.reduction(launch, stream);
}

// Returns the number of elements before the first that is aligned to 16 bytes in all inputs and
// outputs.
inline std::uint64_t head_of(const reduction_launch& l) {
    const auto offset = [](const std::byte* at) {
        return reinterpret_cast<std::uintptr_t>(at) % 16;
    };
    for (int r = 0; r < l.ranks; ++r)
        if (offset(l.in[r]) != offset(l.out[0])) return l.count;
    for (int p = 1; p < l.places; ++p)
        if (offset(l.out[p]) != offset(l.out[0])) return l.count;
    const std::uint64_t head = (16 - offset(l.out[0])) % 16 / bytes_of_number(l.id);
    return head < l.count ? head : l.count;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
