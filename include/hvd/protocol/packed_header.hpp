// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "header_check.hpp"

namespace hvd::inline v0::detail {

// Headers travel between nodes without the parts that they do not use. Most have some twenty bytes
// then, instead of 460, and those of a node, which are alike, little more together.

// The bytes that one header has at most, with the mark before it: more than its numbers take are
// those that say which are there, and those of a long count.
constexpr std::size_t most_packed_header = 1 + 1 + 2 + offsetof(call_header, extents) +
                                           sizeof call_header::extents + sizeof call_header::name +
                                           sizeof call_header::type + sizeof call_header::text;

inline std::byte* pack_bytes(std::byte* to, const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
    return to + bytes;
}
inline std::byte* pack_text(std::byte* to, const char* text) {
    return pack_bytes(to, text, std::strlen(text) + 1);
}

// A number of most headers is the one here, and does not travel then.
template <class F>
void for_each_rare_number(F f) {
    f(1, &call_header::root, std::int32_t(-1));
    f(2, &call_header::prescale, 1.0);
    f(4, &call_header::postscale, 1.0);
    f(8, &call_header::plan, std::uint64_t(0));
    f(16, &call_header::content, std::uint64_t(0));
}
// The only extent of most tensors is their number of elements.
constexpr unsigned extent_is_count = 32;

// The numbers before them.
constexpr std::size_t leading_numbers = offsetof(call_header, root);

// Seven bits in each byte; all but the last one have the eighth bit.
inline std::byte* pack_count(std::byte* to, std::uint64_t count) {
    for (; count > 127; count >>= 7) *to++ = std::byte(count | 128);
    *to++ = std::byte(count);
    return to;
}

// Writes a header, and returns the end.
inline std::byte* pack_header(const call_header& h, std::byte* to) {
    std::byte* const mask = to;
    unsigned there = 0;
    to = pack_bytes(to + 1, &h, leading_numbers);
    to = pack_count(to, h.count);
    for_each_rare_number([&](unsigned bit, auto member, auto usual) {
        if (std::memcmp(&(h.*member), &usual, sizeof usual) == 0) return;
        there |= bit;
        to = pack_bytes(to, &(h.*member), sizeof usual);
    });
    if (h.dimensions == 1 && h.extents[0] == h.count) there |= extent_is_count;
    else to = pack_bytes(to, h.extents, h.dimensions * sizeof h.extents[0]);
    *mask = std::byte(there);
    to = pack_text(to, h.name);
    to = pack_text(to, h.type);
    return pack_text(to, h.text);
}

// The functions that read return the end of what they have read. They return null if that is not
// what the functions above write, or would go beyond `end`.
inline const std::byte* unpack_bytes(void* to, const std::byte* from, const std::byte* end,
                                     std::size_t bytes) {
    if (from == nullptr || std::size_t(end - from) < bytes) return nullptr;
    std::memcpy(to, from, bytes);
    return from + bytes;
}
inline const std::byte* unpack_text(char* to, std::size_t room, const std::byte* from,
                                    const std::byte* end) {
    if (from == nullptr || from == end) return nullptr;
    const std::size_t left = std::size_t(end - from);
    const void* const last = std::memchr(from, 0, left < room ? left : room);
    if (last == nullptr) return nullptr;
    return unpack_bytes(to, from, end, std::size_t(static_cast<const std::byte*>(last) - from) + 1);
}

inline const std::byte* unpack_count(std::uint64_t& count, const std::byte* from,
                                     const std::byte* end) {
    count = 0;
    for (int shift = 0; from != nullptr && from != end && shift < 64; shift += 7) {
        const std::uint64_t bits = std::uint64_t(*from & std::byte(127));
        count |= bits << shift;
        if (bits << shift >> shift != bits) return nullptr;
        if (std::to_integer<unsigned>(*from++) < 128) return from;
    }
    return nullptr;
}

inline const std::byte* unpack_header(call_header& h, const std::byte* from, const std::byte* end) {
    if (std::size_t(end - from) < 1 + leading_numbers) return nullptr;
    const unsigned there = std::to_integer<unsigned>(*from++);
    if (there >= 2 * extent_is_count || !has_header_numbers(from)) return nullptr;
    from = unpack_bytes(&h, from, end, leading_numbers);
    from = unpack_count(h.count, from, end);
    for_each_rare_number([&](unsigned bit, auto member, auto usual) {
        if ((there & bit) != 0) from = unpack_bytes(&(h.*member), from, end, sizeof usual);
        else h.*member = usual;
    });
    if ((there & extent_is_count) == 0)
        from = unpack_bytes(h.extents, from, end, h.dimensions * sizeof h.extents[0]);
    else if (h.dimensions == 1) h.extents[0] = h.count;
    else return nullptr;
    from = unpack_text(h.name, sizeof h.name, from, end);
    from = unpack_text(h.type, sizeof h.type, from, end);
    return unpack_text(h.text, sizeof h.text, from, end);
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
const std::byte* unpack_headers(int n, const std::byte* from, const std::byte* end, Get get) {
    for (int i = 0; i < n; ++i) {
        if (from == nullptr || from == end) return nullptr;
        const std::byte mark = *from++;
        if (mark > std::byte(i > 0 ? 1 : 0)) return nullptr;
        if (mark != std::byte(0)) copy_header(get(i), get(i - 1));
        else from = unpack_header(get(i), from, end);
    }
    return from;
}

}  // namespace hvd::inline v0::detail
