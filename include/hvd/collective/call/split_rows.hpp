// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>

#include "../../transport/operation.hpp"

namespace hvd::inline v0::detail {

// Splits the first extent as evenly as whole rows allow: the first (rows % size) ranks get one
// more. `bounds` has size + 1 entries.
template <class View>
void split_rows(const View& view, int size, std::size_t* bounds) {
    const std::size_t rows = View::rank() == 0 ? 1 : view.extent(0);
    const std::size_t row = rows == 0 ? 0 : view.size() / rows;
    for (int r = 0; r <= size; ++r) bounds[r] = even_part(rows, r, size) * row;
}

}  // namespace hvd::inline v0::detail
