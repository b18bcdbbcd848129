// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>

#include "simd/vector.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Copies as memcpy does, and uses memcpy below 2 KiB. Above 2 KiB glibc uses `rep movsb`. That is
// ten times slower on an AMD Zen 3 if the destination lies a little further into its page than the
// source (glibc's bug 30994). Large blocks of malloc lie so, 16 bytes into a page, beside memory
// that was mapped. At 64 KiB memcpy gives 3 GB/s there and this loop 34 GB/s; elsewhere they give
// 38 to 50 GB/s and 34 to 52 GB/s.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
#if HVD_KERNEL_VECTORS
    if (bytes >= 2048) {
        using V = simd_vector<long long, 16>;
        constexpr std::size_t step = 4 * sizeof(V);
        for (; bytes >= step; to += step, from += step, bytes -= step) {
            V v[4];
            for (int i = 0; i < 4; ++i) read_bits(v[i], from + i * sizeof(V));
            for (int i = 0; i < 4; ++i) write_bits(to + i * sizeof(V), v[i]);
        }
    }
#endif
    if (bytes > 0) __builtin_memcpy(to, from, bytes);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
