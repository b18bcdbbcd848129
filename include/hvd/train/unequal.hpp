// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../core/error.hpp"
#include "../core/lean/text.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Throws mismatch_error unless all ranks said the same; `said[r]` is what rank r did, and everybody
// has them all.
inline void require_equal(int rank, std::string_view what, std::string_view field,
                          const std::vector<std::string>& said) {
    bool same = true;
    std::vector<mismatch_error::entry> table;
    std::string rows;
    for (std::size_t r = 0; r < said.size(); ++r) {
        same = same && said[r] == said[0];
        table.emplace_back(int(r), said[r]);
        rows += text("\n  rank ", int(r), ": ", said[r]);
    }
    if (same) return;
    throw mismatch_error(rank, text("hvd: rank ", rank, ": ", what, ":", rows), field, table);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
