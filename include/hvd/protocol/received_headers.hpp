// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <iterator>

#include "agreement.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Some channels carry headers as plain bytes, by a collective that a rank may also make for its own
// tensors. If it does while the others agree on something, they receive its tensor.

// True if the bytes can be read and printed as a header: each number is one of its kind, and each
// text has an end.
[[gnu::cold]] inline bool is_header(const std::byte* bytes) {
    const auto below = [&](std::size_t field, std::size_t end) {
        return std::to_integer<std::size_t>(bytes[field]) < end;
    };
    const auto ends = [&](std::size_t text, std::size_t room) {
        return std::memchr(bytes + text, 0, room) != nullptr;
    };
    using h = call_header;
    for (std::size_t i = 0; i < sizeof h::unused; ++i)
        if (!below(offsetof(h, unused) + i, 1)) return false;
    return below(offsetof(h, kind), std::size(collective_table)) &&
           below(offsetof(h, refused), 2) && below(offsetof(h, fused), 2) &&
           below(offsetof(h, making_plan), 2) &&
           below(offsetof(h, dimensions), max_dimensions + 1) &&
           below(offsetof(h, id), std::size_t(dtype::user) + 1) &&
           below(offsetof(h, op), std::size(op_names)) &&
           below(offsetof(h, mode), std::size(rounding_names)) &&
           below(offsetof(h, compares_names), 2) && ends(offsetof(h, name), sizeof h::name) &&
           ends(offsetof(h, type), sizeof h::type) && ends(offsetof(h, text), sizeof h::text);
}

// Replaces other bytes by a header that differs from those of all calls. The comparison then names
// the ranks that were in another call.
[[gnu::cold]] inline void replace_other_bytes(table<call_header>& received) {
    for (call_header& h : received)
        if (!is_header(reinterpret_cast<const std::byte*>(&h)))
            h = agreement_header("another call, which sent its tensor");
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
