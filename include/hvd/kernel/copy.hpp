// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>

#include "../core/tuning.hpp"
#include "simd/stream.hpp"
#include "simd/vector.hpp"

namespace hvd::inline v0::detail {

#if HVD_KERNEL_X86

// Copies whole blocks of four vectors, and returns their bytes.
template <int Width>
HVD_KERNEL_BODY std::size_t copy_blocks(std::byte* to, const std::byte* from, std::size_t bytes) {
    using V = simd_vector<long long, Width>;
    constexpr std::size_t step = 4 * sizeof(V);
    std::size_t at = 0;
    for (; bytes - at >= step; at += step) {
        V a, b, c, d;  // an array of vectors would go through memory
        read_bits(a, from + at);
        read_bits(b, from + at + sizeof(V));
        read_bits(c, from + at + 2 * sizeof(V));
        read_bits(d, from + at + 3 * sizeof(V));
        write_bits(to + at, a);
        write_bits(to + at + sizeof(V), b);
        write_bits(to + at + 2 * sizeof(V), c);
        write_bits(to + at + 3 * sizeof(V), d);
    }
    return at;
}

inline std::size_t copy_baseline(std::byte* to, const std::byte* from, std::size_t bytes) {
    return copy_blocks<16>(to, from, bytes);
}
HVD_KERNEL_AVX2 inline std::size_t copy_avx2(std::byte* to, const std::byte* from,
                                             std::size_t bytes) {
    return copy_blocks<32>(to, from, bytes);
}

#endif

// Copies as memcpy does, and by memcpy up to 2 KiB. Above, glibc uses `rep movsb`, which an AMD Zen
// 3 does ten times slower if the destination lies a little further into its page than the source
// (glibc's bug 30994; tuning.hpp has the figures). Large blocks of malloc lie so, 16 bytes into a
// page, beside memory that was mapped. Elsewhere memcpy gives 38 to 50 GB/s and this loop 34 to 52.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
#if HVD_KERNEL_X86
    if (bytes >= tuning::own_copy_from) {
        const std::size_t done = runs_here(simd_level::avx2) ? copy_avx2(to, from, bytes)
                                                             : copy_baseline(to, from, bytes);
        to += done;
        from += done;
        bytes -= done;
    }
#endif
    if (bytes > 0) __builtin_memcpy(to, from, bytes);
}

// The ways to write into memory that other processors have read and will read. Which one is the
// fastest depends on the processor, and on how far its caches are from the readers'.
enum class store_kind : std::uint8_t {
    vectors,   // each line is fetched, and stays in the cache of this processor
    string,    // `rep movsb`: the processor knows that it overwrites whole lines
    streamed,  // past the caches
};
constexpr int store_kinds = HVD_KERNEL_X86 ? 3 : 1;

inline void store_bytes([[maybe_unused]] store_kind kind, std::byte* to, const std::byte* from,
                        std::size_t bytes) {
#if HVD_KERNEL_X86
    if (kind == store_kind::string) {
        asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
        return;
    }
    if (kind == store_kind::streamed) {
        stream_bytes(to, from, bytes);
        return finish_streaming();
    }
#endif
    copy_bytes(to, from, bytes);
}

}  // namespace hvd::inline v0::detail
