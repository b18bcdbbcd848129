// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <vector>

#include "comparison.hpp"

namespace hvd::inline v0::detail {

// A header comes from another process. Its numbers are indexes of tables, and its texts are
// printed, so that nothing reads it as a header before these functions have seen it.

// True if each number before the extents is one of its kind.
inline bool has_header_numbers(const std::byte* bytes) {
    const auto below = [&](std::size_t field, std::size_t end) {
        return std::to_integer<std::size_t>(bytes[field]) < end;
    };
    using h = call_header;
    return below(offsetof(h, kind), std::size(collective_table)) &&
           below(offsetof(h, refused), 2) && below(offsetof(h, fused), 2) &&
           below(offsetof(h, making_plan), 2) &&
           below(offsetof(h, dimensions), max_dimensions + 1) &&
           below(offsetof(h, id), std::size(dtype_names)) &&
           below(offsetof(h, op), std::size(op_names)) &&
           below(offsetof(h, mode), std::size(rounding_names)) &&
           below(offsetof(h, compares_names), 2) && below(offsetof(h, not_finite), 2);
}

// True if the bytes can be read and printed as a header: each number is one of its kind, and each
// text has an end.
inline bool is_header(const std::byte* bytes) {
    const auto ends = [&](std::size_t text, std::size_t room) {
        return std::memchr(bytes + text, 0, room) != nullptr;
    };
    using h = call_header;
    return has_header_numbers(bytes) && ends(offsetof(h, name), sizeof h::name) &&
           ends(offsetof(h, type), sizeof h::type) && ends(offsetof(h, text), sizeof h::text);
}
inline bool is_header(const call_header& h) {
    return is_header(reinterpret_cast<const std::byte*>(&h));
}

// For an error about a rank whose bytes are none that hvd writes.
constexpr const char* sent_other_bytes = " sent what no rank sends";

}  // namespace hvd::inline v0::detail
