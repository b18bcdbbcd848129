// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "../../core/tensor_view.hpp"

namespace hvd::inline v0 {

/// Rows of a table whose other rows are zero. The i-th row of `values` belongs to row `indices[i]`.
///
/// An index may occur several times; its rows are added. The view owns nothing.
template <class T, class Space = host>
struct sparse_view {
    std::span<const std::int64_t> indices;
    std::span<const T> values;
};

/// Rows in device memory.
template <class T>
struct sparse_view<T, device> {
    tensor_view<const std::int64_t, device> indices;
    tensor_view<const T, device> values;
};

/// Sparse rows in memory of their own. Results of hvd are sorted and contain each index once.
template <class T>
struct sparse_rows {
    std::vector<std::int64_t> indices;
    std::vector<T> values;

    operator sparse_view<T>() const { return {indices, values}; }
};

namespace detail {

// A gradient as the parts that may be other than zero: all of it, or rows of a table.
template <class T, class Space = host>
struct gradient_parts {
    tensor_view<T, Space> whole;
    const std::vector<std::int64_t>* rows = nullptr;  // sorted; null: all
    std::size_t columns = 0;

    // Calls f with each part. Rows that follow each other are one.
    template <class F>
    void for_each(F f) const {
        if (rows == nullptr) return f(whole);
        for (std::size_t n = 0, end = 0; n < rows->size(); n = end) {
            const std::int64_t first = (*rows)[n];
            for (end = n + 1; end < rows->size() && (*rows)[end] == first + std::int64_t(end - n);)
                ++end;
            f(tensor_view<T, Space>(whole.data() + std::size_t(first) * columns,
                                    {(end - n) * columns}));
        }
    }
};

// Calls f(row of the table, row of the values) for each row, in their order.
template <class T, class Values, class F>
void for_each_row(const tensor_view<T>& table, std::span<const std::int64_t> indices,
                  Values&& values, F f) {
    if (indices.empty()) return;
    const std::size_t columns = values.size() / indices.size();
    const auto all = std::span(values);
    for (std::size_t n = 0; n < indices.size(); ++n)
        f(std::span<T>(table.data() + std::size_t(indices[n]) * columns, columns),
          all.subspan(n * columns, columns));
}

}  // namespace detail
}  // namespace hvd::inline v0
