// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>

#include "../core/tuning.hpp"
#include "simd/vector.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Copies as memcpy does, and by memcpy up to 2 KiB. Above, glibc uses `rep movsb`, which an AMD Zen
// 3 does ten times slower if the destination lies a little further into its page than the source
// (glibc's bug 30994; tuning.hpp has the figures). Large blocks of malloc lie so, 16 bytes into a
// page, beside memory that was mapped. Elsewhere memcpy gives 38 to 50 GB/s and this loop 34 to 52.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
#if HVD_KERNEL_X86
    if (bytes >= tuning::own_copy_from) {
        using V = simd_vector<long long, 16>;
        constexpr std::size_t step = 4 * sizeof(V);
        for (; bytes >= step; to += step, from += step, bytes -= step) {
            V v[4];
            for (std::size_t i = 0; i < 4; ++i) read_bits(v[i], from + i * sizeof(V));
            for (std::size_t i = 0; i < 4; ++i) write_bits(to + i * sizeof(V), v[i]);
        }
    }
#endif
    if (bytes > 0) __builtin_memcpy(to, from, bytes);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
