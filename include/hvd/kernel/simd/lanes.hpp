// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <limits>

#include "../../core/dtype.hpp"
#include "vector.hpp"

#if HVD_KERNEL_VECTORS

namespace hvd::inline v0::detail {

// Elements of type T in the form in which they are computed; 16-bit floats are widened to float. It
// holds two vectors with a name each, since the elements of an array would go through memory.
template <class T, int Width>
struct lanes {
    using accumulator = typename dtype_traits<T>::accumulator;
    using V = simd_vector<accumulator, Width>;
    static constexpr std::size_t size = Width / sizeof(accumulator);
    static constexpr std::size_t block = 2 * size;
    static constexpr bool is_interleaved = dtype_traits<T>::id == dtype::bfloat16;

    V a, b;

    HVD_KERNEL_BODY void load(const T* from) {
        if constexpr (id == dtype::float16) {
            half bits;
            read_bits(bits, from);
            widen_float16(a, bits);
            read_bits(bits, from + size);
            widen_float16(b, bits);
            // the even elements go to a, the odd ones to b
        } else if constexpr (id == dtype::bfloat16) {
            word bits;
            read_bits(bits, from);
            a = reinterpret_cast<V>(bits << 16);
            b = reinterpret_cast<V>(bits & 0xffff0000);
        } else {
            read_bits(a, from);
            read_bits(b, from + size);
        }
    }

    // Stores 16-bit floats correctly only if every NaN is the canonical one.
    HVD_KERNEL_BODY void store(T* to) const {
        if constexpr (id == dtype::float16) {
            half bits;
            narrow_float16(bits, a);
            write_bits(to, bits);
            narrow_float16(bits, b);
            write_bits(to + size, bits);
        } else if constexpr (id == dtype::bfloat16) {
            word x = reinterpret_cast<word>(a), y = reinterpret_cast<word>(b);
            x += 0x7fff + ((x >> 16) & 1);
            y += 0x7fff + ((y >> 16) & 1);
            const word bits = (x >> 16) | (y & 0xffff0000);
            write_bits(to, bits);
        } else {
            write_bits(to, a);
            write_bits(to + size, b);
        }
    }

    HVD_KERNEL_BODY void scale([[maybe_unused]] accumulator factor) {
        if constexpr (std::is_floating_point_v<accumulator>) {
            multiply(a, factor);
            multiply(b, factor);
        }
    }

    HVD_KERNEL_BODY void divide(accumulator by) {
        a /= by;
        b /= by;
    }

    // Replaces infinities and NaNs by 0.
    HVD_KERNEL_BODY void drop_specials() {
        vector_mask<V> special;
        find_specials(special, a);
        a = special ? V{} : a;
        find_specials(special, b);
        b = special ? V{} : b;
    }

    // Moves elements in order to the even ones in a and the odd ones in b. With Back it does the
    // reverse.
    template <bool Back>
    HVD_KERNEL_BODY void interleave() {
        const V x = a, y = b;
        if constexpr (size == 4 && Back) {
            a = __builtin_shufflevector(x, y, 0, 4, 1, 5);
            b = __builtin_shufflevector(x, y, 2, 6, 3, 7);
        } else if constexpr (size == 4) {
            a = __builtin_shufflevector(x, y, 0, 2, 4, 6);
            b = __builtin_shufflevector(x, y, 1, 3, 5, 7);
        } else if constexpr (size == 8 && Back) {
            a = __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
            b = __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
        } else if constexpr (size == 8) {
            a = __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14);
            b = __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15);
        } else if constexpr (Back) {
            a = __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                        23);
            b = __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                        15, 31);
        } else {
            a = __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28,
                                        30);
            b = __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29,
                                        31);
        }
    }

    // Does for vectors as canonical() does for elements.
    HVD_KERNEL_BODY void make_nans_one() {
        if constexpr (std::is_floating_point_v<accumulator>) {
            using I = std::conditional_t<sizeof(accumulator) == 4, std::int32_t, std::int64_t>;
            using bits = simd_vector<I, Width>;
            constexpr I nan = __builtin_bit_cast(I, canonical_nan_of<accumulator>);
            vector_mask<V> none;
            find_nans(none, a);
            a = reinterpret_cast<V>(none ? bits{} + nan : reinterpret_cast<bits>(a));
            find_nans(none, b);
            b = reinterpret_cast<V>(none ? bits{} + nan : reinterpret_cast<bits>(b));
        }
    }

private:
    template <class A>
    static constexpr A canonical_nan_of = std::numeric_limits<A>::quiet_NaN();
    static constexpr dtype id = dtype_traits<T>::id;
    using half = simd_vector<std::uint16_t, Width / 2>;
    using word = simd_vector<std::uint32_t, Width>;
};

}  // namespace hvd::inline v0::detail

#endif
