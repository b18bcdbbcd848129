// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../core/half.hpp"
#include "../../core/lean/finite.hpp"
#include "level.hpp"

// These are the vectors of GNU C. <immintrin.h> takes longer to compile than all of hvd. They are
// passed by reference, since the ABI of a vector by value depends on the caller's instructions.

#if HVD_KERNEL_VECTORS

namespace hvd::inline v0::detail {

template <class T, int Bytes>
struct vector_of {
    typedef T type __attribute__((vector_size(Bytes)));
    typedef T unaligned __attribute__((vector_size(Bytes), aligned(1), may_alias));
};

template <class T, int Bytes>
using simd_vector = typename vector_of<T, Bytes>::type;

template <class V, class T>
HVD_KERNEL_BODY void read_bits(V& to, const T* from) {
    to = *reinterpret_cast<
        const typename vector_of<std::remove_cvref_t<decltype(to[0])>, sizeof(V)>::unaligned*>(
        from);
}

template <class V, class T>
HVD_KERNEL_BODY void write_bits(T* to, const V& from) {
    *reinterpret_cast<
        typename vector_of<std::remove_cvref_t<decltype(from[0])>, sizeof(V)>::unaligned*>(to) =
        from;
}

// The constraint of an operand of assembly that is a vector.
#if HVD_KERNEL_X86
#define HVD_KERNEL_OPERAND "v"
#else
#define HVD_KERNEL_OPERAND "w"
#endif

// Multiplies without contraction with a following addition. AVX-512 and AArch64 have fused
// multiply-add, which rounds once where the other levels round twice. clang contracts only within
// expressions.
template <class V>
HVD_KERNEL_BODY void multiply(V& a, std::remove_cvref_t<decltype(std::declval<V&>()[0])> factor) {
    a *= factor;
#ifndef __clang__
    asm("" : "+" HVD_KERNEL_OPERAND(a));
#endif
}

// The result of a comparison of vectors: all bits of an element, or none.
template <class V>
using vector_mask = decltype(std::declval<const V&>() != std::declval<const V&>());

// The elements that are NaNs, and those that are infinities or NaNs, as masks. Where the compiler
// takes all numbers for finite, bits are compared, through an operand that hides where they are
// from. clang knows no wide vectors as operands of a body, so it takes memory.
#if __FINITE_MATH_ONLY__
#ifdef __clang__
#define HVD_KERNEL_HIDDEN "m"
#else
#define HVD_KERNEL_HIDDEN HVD_KERNEL_OPERAND
#endif

template <class T>
using signed_bits = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;

template <class V>
HVD_KERNEL_BODY void find_nans(vector_mask<V>& found, const V& x) {
    using T = std::remove_cvref_t<decltype(x[0])>;
    if constexpr (std::is_floating_point_v<T>) {
        using I = signed_bits<T>;
        auto bits = reinterpret_cast<simd_vector<I, sizeof(V)>>(x);
        asm("" : "+" HVD_KERNEL_HIDDEN(bits));
        found =
            (bits & I(~(std::make_unsigned_t<I>(1) << (8 * sizeof(T) - 1)))) > I(infinity_bits<T>);
    } else {
        found = x != x;
    }
}

template <class V>
HVD_KERNEL_BODY void find_specials(vector_mask<V>& found, const V& x) {
    using T = std::remove_cvref_t<decltype(x[0])>;
    using I = signed_bits<T>;
    auto bits = reinterpret_cast<simd_vector<I, sizeof(V)>>(x);
    asm("" : "+" HVD_KERNEL_HIDDEN(bits));
    found = (bits & I(infinity_bits<T>)) == I(infinity_bits<T>);
}
#undef HVD_KERNEL_HIDDEN
#else
template <class V>
HVD_KERNEL_BODY void find_nans(vector_mask<V>& found, const V& x) {
    found = x != x;
}

template <class V>
HVD_KERNEL_BODY void find_specials(vector_mask<V>& found, const V& x) {
    found = x - x != 0;
}
#endif

// Takes the root of each element. clang knows no wider root in a body, so it works by parts of 16
// bytes.
template <class V>
HVD_KERNEL_BODY void square_root(V& x) {
    constexpr bool is_double = sizeof(x[0]) == 8;
#if !HVD_KERNEL_X86
    if constexpr (is_double) asm("fsqrt %0.2d, %0.2d" : "+w"(x));
    else asm("fsqrt %0.4s, %0.4s" : "+w"(x));
#elif defined(__clang__)
    using part = simd_vector<std::remove_cvref_t<decltype(x[0])>, 16>;
    part parts[sizeof(V) / 16];
    __builtin_memcpy(parts, &x, sizeof x);
    for (part& p : parts) {
        if constexpr (is_double) p = __builtin_ia32_sqrtpd(p);
        else p = __builtin_ia32_sqrtps(p);
    }
    __builtin_memcpy(&x, parts, sizeof x);
#else
    if constexpr (sizeof(V) == 16 && is_double) asm("sqrtpd %0, %0" : "+x"(x));
    else if constexpr (sizeof(V) == 16) asm("sqrtps %0, %0" : "+x"(x));
    else if constexpr (is_double) asm("vsqrtpd %0, %0" : "+v"(x));
    else asm("vsqrtps %0, %0" : "+v"(x));
#endif
}

// ---- float16 ------------------------------------------------------------------------------------

// Every AArch64 converts float16 by an instruction. On x86-64 none converts 16 bytes of float
// without F16C, so those follow hvd::float16's own algorithm, in vectors.
template <class F, class H>
HVD_KERNEL_BODY void widen_float16(F& to, const H& from) {
#if !HVD_KERNEL_X86
    asm("fcvtl %0.4s, %1.4h" : "=w"(to) : "w"(from));
#else
    if constexpr (sizeof(F) > 16) {
#ifdef __clang__
        to = __builtin_convertvector(
            reinterpret_cast<const simd_vector<_Float16, sizeof(H)>&>(from), F);
#else
        asm("vcvtph2ps {%1, %0|%0, %1}" : "=v"(to) : "v"(from));
#endif
    } else {
        using U = simd_vector<std::uint32_t, sizeof(F)>;
        const U word = __builtin_convertvector(from, U);
        const U magnitude = (word & 0x7fff) << 13;
        const U special = reinterpret_cast<U>(magnitude >= 0x0f800000) & 0x7f800000;
        const U subnormal =
            reinterpret_cast<U>(reinterpret_cast<F>(magnitude + 0x38800000) - 0x1p-14f);
        const U number = magnitude < 0x00800000 ? subnormal : magnitude + 0x38000000;
        to = reinterpret_cast<F>(number | special | ((word & 0x8000) << 16));
    }
#endif
}

// The only NaN that may come here is the canonical one.
template <class H, class F>
HVD_KERNEL_BODY void narrow_float16(H& to, const F& from) {
#if !HVD_KERNEL_X86
    asm("fcvtn %0.4h, %1.4s" : "=w"(to) : "w"(from));
#else
    if constexpr (sizeof(F) > 16) {
#ifdef __clang__
        const auto narrow = __builtin_convertvector(from, simd_vector<_Float16, sizeof(H)>);
        to = reinterpret_cast<const H&>(narrow);
#else
        asm("vcvtps2ph {$0, %1, %0|%0, %1, 0}" : "=v"(to) : "v"(from));
#endif
    } else {
        using U = simd_vector<std::uint32_t, sizeof(F)>;
        const U word = reinterpret_cast<U>(from);
        const U magnitude = word & 0x7fffffff;
        const U subnormal = reinterpret_cast<U>(reinterpret_cast<F>(magnitude) + 0.5f) - 0x3f000000;
        const U normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
        U result = magnitude < 0x38800000 ? subnormal : normal;
        result = magnitude >= 0x477ff000 ? U{} + 0x7c00 : result;
        result = magnitude > 0x7f800000 ? U{} + 0x7e00 : result;
        to = __builtin_convertvector(result | ((word >> 16) & 0x8000), H);
    }
#endif
}

}  // namespace hvd::inline v0::detail

#endif
