// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstring>

#include "../core/dtype.hpp"
#include "../core/tensor_view.hpp"
#include "copy.hpp"

namespace hvd::inline v0::detail {

constexpr std::size_t max_dimensions = 8;

// A tensor without its C++ type, as fusion, packing and the agreement between ranks need it.
struct tensor_ref {
    std::byte* data;
    std::size_t count;
    std::size_t element_bytes;
    dtype id;
    bool dense;
    std::uint8_t dimensions;
    std::uint32_t number;  // its place in the list that it is part of
    std::string_view type;
    std::size_t extents[max_dimensions];
    std::ptrdiff_t steps[max_dimensions];  // in bytes

    std::size_t bytes() const { return count * element_bytes; }
};

template <class T, class S, std::size_t Rank, class Layout>
tensor_ref erase(const tensor_view<T, S, Rank, Layout>& view) {
    static_assert(Rank <= max_dimensions, "hvd: a tensor has at most 8 dimensions");
    using V = std::remove_cv_t<T>;
    tensor_ref ref{};
    ref.data = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(view.data()));
    ref.count = view.size();
    ref.element_bytes = sizeof(V);
    ref.id = dtype_traits<V>::id;
    ref.type = dtype_name<V>();
    ref.dimensions = Rank;
    ref.dense = true;
    std::ptrdiff_t dense_step = sizeof(V);
    for (std::size_t d = Rank; d-- > 0;) {
        ref.extents[d] = view.extent(d);
        ref.steps[d] = view.stride(d) * std::ptrdiff_t(sizeof(V));
        if (ref.steps[d] != dense_step && ref.extents[d] > 1) ref.dense = false;
        dense_step *= std::ptrdiff_t(ref.extents[d]);
    }
    return ref;
}

template <bool Pack>
void copy_strided(const tensor_ref& t, std::size_t dimension, std::byte* at, std::byte*& buffer) {
    const bool last = dimension + 1 >= t.dimensions;
    if (last && (t.dimensions == 0 || t.steps[dimension] == std::ptrdiff_t(t.element_bytes))) {
        const std::size_t run = (t.dimensions == 0 ? 1 : t.extents[dimension]) * t.element_bytes;
        if constexpr (Pack) copy_bytes(buffer, at, run);
        else copy_bytes(at, buffer, run);
        buffer += run;
        return;
    }
    for (std::size_t i = 0; i < t.extents[dimension]; ++i, at += t.steps[dimension]) {
        if (!last) {
            copy_strided<Pack>(t, dimension + 1, at, buffer);
            continue;
        }
        if constexpr (Pack) std::memcpy(buffer, at, t.element_bytes);
        else std::memcpy(at, buffer, t.element_bytes);
        buffer += t.element_bytes;
    }
}

// Copies a tensor, row-major, to `buffer`.
inline void pack(const tensor_ref& t, std::byte* buffer) {
    if (t.count == 0) return;
    if (t.dense) copy_bytes(buffer, t.data, t.bytes());
    else copy_strided<true>(t, 0, t.data, buffer);
}

// Copies `buffer` back to the tensor.
inline void unpack(const tensor_ref& t, const std::byte* buffer) {
    if (t.count == 0) return;
    std::byte* from = const_cast<std::byte*>(buffer);
    if (t.dense) copy_bytes(t.data, from, t.bytes());
    else copy_strided<false>(t, 0, t.data, from);
}

}  // namespace hvd::inline v0::detail
