// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call_header.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Headers travel between nodes without the parts that they do not use. Most have some seventy bytes
// then, instead of 460, and those of a node, which are alike, little more together.

// The bytes that one header has at most, with the mark before it.
constexpr std::size_t most_packed_header = 1 + offsetof(call_header, extents) +
                                           sizeof call_header::extents + sizeof call_header::name +
                                           sizeof call_header::type + sizeof call_header::text;

inline std::byte* pack_bytes(std::byte* to, const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
    return to + bytes;
}
inline std::byte* pack_text(std::byte* to, const char* text) {
    return pack_bytes(to, text, std::strlen(text) + 1);
}

// Writes a header, and returns the end.
inline std::byte* pack_header(const call_header& h, std::byte* to) {
    to = pack_bytes(to, &h, offsetof(call_header, extents) + h.dimensions * sizeof h.extents[0]);
    to = pack_text(to, h.name);
    to = pack_text(to, h.type);
    return pack_text(to, h.text);
}

inline const std::byte* unpack_bytes(void* to, const std::byte* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
    return from + bytes;
}
inline const std::byte* unpack_text(char* to, const std::byte* from) {
    return unpack_bytes(to, from, std::strlen(reinterpret_cast<const char*>(from)) + 1);
}

inline const std::byte* unpack_header(call_header& h, const std::byte* from) {
    from = unpack_bytes(&h, from, offsetof(call_header, extents));
    from = unpack_bytes(h.extents, from, h.dimensions * sizeof h.extents[0]);
    from = unpack_text(h.name, from);
    from = unpack_text(h.type, from);
    return unpack_text(h.text, from);
}

// Writes `n` headers, of which get(i) is number i. One that equals the header before it takes one
// byte. There is room for `n` times most_packed_header. It returns the end.
template <class Get>
std::byte* pack_headers(int n, std::byte* to, Get get) {
    const std::byte* before = nullptr;
    std::size_t bytes_before = 0;
    for (int i = 0; i < n; ++i) {
        std::byte* const mark = to;
        to = pack_header(get(i), mark + 1);
        const std::size_t bytes = std::size_t(to - mark) - 1;
        const bool same = bytes == bytes_before && std::memcmp(mark + 1, before, bytes) == 0;
        *mark = std::byte(same);
        if (same) {
            to = mark + 1;
        } else {
            before = mark + 1;
            bytes_before = bytes;
        }
    }
    return to;
}

// Reads `n` headers to where get(i) says.
template <class Get>
void unpack_headers(int n, const std::byte* from, Get get) {
    for (int i = 0; i < n; ++i) {
        const bool same = *from++ != std::byte(0);
        if (same) copy_header(get(i), get(i - 1));
        else from = unpack_header(get(i), from);
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
