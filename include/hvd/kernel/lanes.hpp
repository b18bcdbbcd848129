// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <limits>

#include "../core/dtype.hpp"
#include "vector.hpp"

#if HVD_KERNEL_VECTORS

namespace hvd {
inline namespace v0 {
namespace detail {

// Elements of type T as they are computed with: 16-bit floats widened to float. Two vectors at a time,
// each with its name: elements of an array would go through memory.
template <class T, int Width>
struct lanes {
    using accumulator = typename dtype_traits<T>::accumulator;
    using V = vector<accumulator, Width>;
    static constexpr std::size_t size = Width / sizeof(accumulator);
    static constexpr std::size_t block = 2 * size;

    V a, b;

    HVD_KERNEL_BODY void load(const T* from) {
        load(a, from);
        load(b, from + size);
    }

    // Of 16-bit floats no NaN but the canonical one.
    HVD_KERNEL_BODY void store(T* to) const {
        store(to, a);
        store(to + size, b);
    }

    HVD_KERNEL_BODY void scale([[maybe_unused]] accumulator factor) {
        if constexpr (std::is_floating_point_v<accumulator>) {
            multiply(a, factor);
            multiply(b, factor);
        }
    }

    HVD_KERNEL_BODY void divide(int by) {
        const accumulator divisor = accumulator(by);
        if ((by & (by - 1)) == 0) {  // a quotient by a power of two is exact as a product
            scale(1 / divisor);
        } else {
            a /= divisor;
            b /= divisor;
        }
    }

    // As canonical() has it.
    HVD_KERNEL_BODY void make_nans_one() {
        if constexpr (std::is_floating_point_v<accumulator>) {
            constexpr accumulator nan = std::numeric_limits<accumulator>::quiet_NaN();
            a = a == a ? a : V{} + nan;
            b = b == b ? b : V{} + nan;
        }
    }

private:
    static constexpr dtype id = dtype_traits<T>::id;
    using half = vector<std::uint16_t, Width / 2>;
    using word = vector<std::uint32_t, Width>;

    HVD_KERNEL_BODY static void load(V& to, const T* from) {
        if constexpr (id == dtype::float16) {
            half bits;
            read_bits(bits, from);
            widen_float16(to, bits);
        } else if constexpr (id == dtype::bfloat16) {
            half bits;
            read_bits(bits, from);
            to = reinterpret_cast<V>(__builtin_convertvector(bits, word) << 16);
        } else {
            read_bits(to, from);
        }
    }

    HVD_KERNEL_BODY static void store(T* to, const V& from) {
        if constexpr (id == dtype::float16) {
            half bits;
            narrow_float16(bits, from);
            write_bits(to, bits);
        } else if constexpr (id == dtype::bfloat16) {
            const word bits = reinterpret_cast<word>(from);
            const half upper = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, half);
            write_bits(to, upper);
        } else {
            write_bits(to, from);
        }
    }
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd

#endif
