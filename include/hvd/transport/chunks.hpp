// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/tuning.hpp"
#include "operation.hpp"

namespace hvd::inline v0::detail {

// Blocks cross between nodes in chunks, so that the messages of one chunk are under way while the
// ranks are busy with another one, and the memory in between stays in the caches.

inline block chunk_of(const block& whole, std::size_t index, std::size_t chunk) {
    const std::size_t begin = index * chunk;
    if (begin >= whole.bytes) return {};
    const std::size_t rest = whole.bytes - begin;
    return {whole.data + begin, rest < chunk ? rest : chunk};
}

inline std::size_t longest_of(const block* blocks, int n) {
    std::size_t longest = 0;
    for (int i = 0; i < n; ++i)
        if (blocks[i].bytes > longest) longest = blocks[i].bytes;
    return longest;
}

// A chunk holds whole elements.
inline std::size_t chunk_for(std::size_t element_bytes, std::size_t chunk_bytes) {
    if (element_bytes >= chunk_bytes) return element_bytes;
    return chunk_bytes / element_bytes * element_bytes;
}

}  // namespace hvd::inline v0::detail
