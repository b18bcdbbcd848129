// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include "../../standard.hpp"

// Vectors are compiled for x86-64 by compilers with GNU's extensions. All others use plain C++.
#if defined(__x86_64__) && defined(__GNUC__)
#define HVD_KERNEL_VECTORS 1
#else
#define HVD_KERNEL_VECTORS 0
#endif

// These attributes make a function part of a level. Bodies are written once, as templates that are
// always inlined into functions with these attributes, and get their instructions from there. A
// body by itself has none of these instructions, so that its assembly could not be compiled.
// Therefore -finstrument-functions must not ask for the address of a body.
#define HVD_KERNEL_BODY [[gnu::always_inline, gnu::no_instrument_function]] inline
#define HVD_KERNEL_AVX2 [[gnu::target("avx2,f16c")]]
#define HVD_KERNEL_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]

namespace hvd {
inline namespace v0 {
namespace detail {

// The instruction set that a kernel is compiled for. All levels give the same bits.
enum class simd_level : std::uint8_t {
    plain,     // any machine
    baseline,  // x86-64: vectors of 16 bytes
    avx2,      // with F16C: vectors of 32 bytes
    avx512,    // F, BW, DQ and VL: vectors of 64 bytes
};

constexpr simd_level simd_levels[] = {simd_level::plain, simd_level::baseline, simd_level::avx2,
                                      simd_level::avx512};
constexpr const char* simd_level_names[] = {"plain", "baseline", "avx2", "avx512"};

// Returns true if this machine runs the level. It reads a word that the C library filled at the
// start, so it is cheap enough for every call and nothing is cached.
inline bool runs_here(simd_level l) {
#if HVD_KERNEL_VECTORS
    switch (l) {
        case simd_level::avx512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#ifdef __clang__  // clang 16 cannot ask for F16C; every processor with AVX2 has it
        case simd_level::avx2: return __builtin_cpu_supports("avx2");
#else
        case simd_level::avx2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#endif
        default: return true;
    }
#else
    return l == simd_level::plain;
#endif
}

inline simd_level best_level() {
    if (runs_here(simd_level::avx512)) return simd_level::avx512;
    if (runs_here(simd_level::avx2)) return simd_level::avx2;
    return runs_here(simd_level::baseline) ? simd_level::baseline : simd_level::plain;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
