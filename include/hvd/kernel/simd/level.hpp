// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include "../../standard.hpp"

// Vectors are compiled by compilers with GNU's extensions, for x86-64 and for AArch64. All others
// use plain C++. x86-64 has wider vectors that only some machines run, and they are chosen when the
// program runs.
#if defined(__GNUC__) && defined(__x86_64__)
#define HVD_KERNEL_VECTORS 1
#define HVD_KERNEL_X86 1
#elif defined(__GNUC__) && defined(__ARM_NEON) && defined(__AARCH64EL__)
#define HVD_KERNEL_VECTORS 1
#define HVD_KERNEL_X86 0
#else
#define HVD_KERNEL_VECTORS 0
#define HVD_KERNEL_X86 0
#endif

// These attributes make a function part of a level. Bodies are written once, as templates that are
// always inlined into functions with these attributes, and get their instructions from there. A
// body by itself has none of these instructions, so that its assembly could not be compiled.
// Therefore -finstrument-functions must not ask for the address of a body.
#define HVD_KERNEL_BODY [[gnu::always_inline, gnu::no_instrument_function]] inline
#define HVD_KERNEL_AVX2 [[gnu::target("avx2,f16c")]]
#define HVD_KERNEL_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]

// HVD_KERNEL_AT(level, name, T...) is the function name_LEVEL<T...>, of those that are compiled.
#if HVD_KERNEL_X86
#define HVD_KERNEL_AT(level, name, ...)                                \
    ((level) == simd_level::avx512     ? &name##_avx512<__VA_ARGS__>   \
     : (level) == simd_level::avx2     ? &name##_avx2<__VA_ARGS__>     \
     : (level) == simd_level::baseline ? &name##_baseline<__VA_ARGS__> \
                                       : &name##_plain<__VA_ARGS__>)
#elif HVD_KERNEL_VECTORS
#define HVD_KERNEL_AT(level, name, ...) \
    ((level) == simd_level::baseline ? &name##_baseline<__VA_ARGS__> : &name##_plain<__VA_ARGS__>)
#else
#define HVD_KERNEL_AT(level, name, ...) \
    ((level) == simd_level::plain ? &name##_plain<__VA_ARGS__> : &name##_plain<__VA_ARGS__>)
#endif

namespace hvd::inline v0::detail {

// The instruction set that a kernel is compiled for. All levels give the same bits.
enum class simd_level : std::uint8_t {
    plain,     // any machine
    baseline,  // x86-64 and AArch64: vectors of 16 bytes
    avx2,      // x86-64 with F16C: vectors of 32 bytes
    avx512,    // x86-64 with F, BW, DQ and VL: vectors of 64 bytes
};

constexpr simd_level simd_levels[] = {simd_level::plain, simd_level::baseline, simd_level::avx2,
                                      simd_level::avx512};
constexpr const char* simd_level_names[] = {"plain", "baseline", "avx2", "avx512"};

// Returns true if this machine runs the level. It reads a word that the C library filled at the
// start, so it is cheap enough for every call and nothing is cached.
inline bool runs_here(simd_level l) {
#if HVD_KERNEL_X86
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
    return l == simd_level::plain || (HVD_KERNEL_VECTORS && l == simd_level::baseline);
#endif
}

inline simd_level best_level() {
    if (runs_here(simd_level::avx512)) return simd_level::avx512;
    if (runs_here(simd_level::avx2)) return simd_level::avx2;
    return runs_here(simd_level::baseline) ? simd_level::baseline : simd_level::plain;
}

}  // namespace hvd::inline v0::detail
