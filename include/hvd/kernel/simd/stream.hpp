// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>

#include "vector.hpp"

namespace hvd::inline v0::detail {

// Copies past the caches, without reading the memory that is overwritten. Call finish_streaming()
// before another thread reads it.
inline void stream_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
#if HVD_KERNEL_X86
    using V = simd_vector<long long, 16>;
    std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % sizeof(V);
    if (head > bytes) head = bytes;
    __builtin_memcpy(to, from, head);
    for (to += head, from += head, bytes -= head; bytes >= sizeof(V);
         to += sizeof(V), from += sizeof(V), bytes -= sizeof(V)) {
        V v;
        read_bits(v, from);
#ifdef __clang__
        __builtin_nontemporal_store(v, reinterpret_cast<V*>(to));
#else
        __builtin_ia32_movntdq(reinterpret_cast<V*>(to), v);
#endif
    }
#endif
    __builtin_memcpy(to, from, bytes);
}

// Makes streamed stores visible to other threads before the later stores of this thread.
inline void finish_streaming() {
#if HVD_KERNEL_X86
    __builtin_ia32_sfence();
#endif
}

}  // namespace hvd::inline v0::detail
