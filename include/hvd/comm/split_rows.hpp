// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <vector>

namespace hvd {
inline namespace v0 {
namespace detail {

// Splits the first extent as evenly as whole rows allow: the first (rows % size) ranks get one more.
template <class View>
void split_rows(const View& view, int size, std::vector<std::size_t>& bounds) {
    const std::size_t rows = View::rank() == 0 ? 1 : view.extent(0);
    const std::size_t row = rows == 0 ? 0 : view.size() / rows;
    const std::size_t n = std::size_t(size);
    bounds.resize(n + 1);
    for (std::size_t r = 0; r <= n; ++r) bounds[r] = (rows / n * r + (r < rows % n ? r : rows % n)) * row;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
