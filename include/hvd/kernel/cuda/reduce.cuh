// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The reduction kernel reads any number of inputs and writes the result to one or several outputs.
// Its body is a function of a block and a thread, which a host compiler takes as well. The launch
// needs nvcc.

#include "../plain.hpp"
#include "elements.cuh"
#include "reduction.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

constexpr unsigned reduction_threads = 256;

// An operation on numbers of type T, as the host does it (plain.hpp). 16-bit numbers are reduced in
// float.
template <class T, class Op>
struct number_reduction {
    using running = decltype(widened(T{}));
    HVD_KERNEL_HOST_DEVICE static running begin(T x, const reduction_launch& l) {
        return scaled(widened(x), l.prescale);
    }
    HVD_KERNEL_HOST_DEVICE static running add(running a, running b) { return combine(Op{}, a, b); }
    HVD_KERNEL_HOST_DEVICE static T end(running x, const reduction_launch& l) {
        if (l.postscale != 1) x = scaled(x, l.postscale);
        if (l.divisor != 0) x = divided(x, l.divisor);
        T result;
        narrow_to(result, canonical(x));
        return result;
    }
};

// Integers wrap around.
template <std::integral T, class Op>
struct number_reduction<T, Op> {
    using running = T;
    HVD_KERNEL_HOST_DEVICE static T begin(T x, const reduction_launch&) { return x; }
    HVD_KERNEL_HOST_DEVICE static T add(T a, T b) { return combine(Op{}, a, b); }
    HVD_KERNEL_HOST_DEVICE static T end(T x, const reduction_launch&) { return x; }
};

// Returns quotient + rest / n, rounded.
template <class T>
HVD_KERNEL_HOST_DEVICE T rounded_mean(T quotient, int rest, int n, rounding mode) {
    const int whole = rest >= 0 ? rest / n : -((n - 1 - rest) / n), more = rest - whole * n;
    const T down = T(quotient + T(whole));
    bool negative = false;
    if constexpr (std::is_signed_v<T>) negative = down < 0;
    const bool up = mode == rounding::nearest       ? 2 * more > n || (2 * more == n && !negative)
                    : mode == rounding::toward_zero ? negative && more > 0
                                                    : false;
    return T(down + T(up));
}

// The exact mean of integers.
template <std::integral T>
    requires(sizeof(T) <= 2)
struct number_reduction<T, op::average> {
    using running = int;
    HVD_KERNEL_HOST_DEVICE static int begin(T x, const reduction_launch&) { return x; }
    HVD_KERNEL_HOST_DEVICE static int add(int a, int b) { return a + b; }
    HVD_KERNEL_HOST_DEVICE static T end(int x, const reduction_launch& l) {
        return rounded_mean<T>(0, x, l.divisor, l.mode);
    }
};

// Each number is divided as it comes, so that no sum overflows the type.
template <std::integral T>
    requires(sizeof(T) > 2)
struct number_reduction<T, op::average> {
    struct running {
        T quotient;
        int rest;
    };
    HVD_KERNEL_HOST_DEVICE static running begin(T x, const reduction_launch& l) {
        return {T(x / T(l.divisor)), int(x % T(l.divisor))};
    }
    HVD_KERNEL_HOST_DEVICE static running add(running a, running b) {
        return {T(a.quotient + b.quotient), a.rest + b.rest};
    }
    HVD_KERNEL_HOST_DEVICE static T end(running x, const reduction_launch& l) {
        return rounded_mean(x.quotient, x.rest, l.divisor, l.mode);
    }
};

// A thread has up to four loads of 16 bytes under way, and as many running results as registers
// hold.
template <class T, class Rule>
constexpr unsigned reduction_loads = [] {
    constexpr std::size_t each =
        sizeof(typename Rule::running) < 4 ? 4 : sizeof(typename Rule::running);
    // More would spill for integers on sm_100.
    constexpr std::size_t most = std::is_integral_v<T> ? 64 : 96;
    constexpr unsigned room = unsigned(most / (16 / sizeof(T) * each));
    return room > 4 ? 4u : room > 0 ? room : 1u;
}();

template <class T, class Rule>
constexpr std::uint64_t elements_per_reduction_block =
    reduction_threads * reduction_loads<T, Rule> * (16 / sizeof(T));

template <class T, class Rule>
std::uint64_t reduction_blocks(const reduction_launch& l) {
    constexpr std::uint64_t each = elements_per_reduction_block<T, Rule>;
    const std::uint64_t most = l.head > l.count - l.head ? l.head : l.count - l.head;
    return (most + each - 1) / each;
}

template <class T, class Rule>
HVD_KERNEL_HOST_DEVICE void reduce_element(const reduction_launch& l, std::uint64_t i) {
    const auto number = [&](int r) {
        return Rule::begin(reinterpret_cast<const T*>(l.in[r])[i], l);
    };
    typename Rule::running sum = number(0);
    for (int r = 1; r < l.ranks; ++r) sum = Rule::add(sum, number(r));
    const T result = Rule::end(sum, l);
    for (int p = 0; p < l.places; ++p) reinterpret_cast<T*>(l.out[p])[i] = result;
}

// Reduces the thread's share of the 16-byte vectors, from number `first` on.
template <class T, class Rule>
HVD_KERNEL_HOST_DEVICE void reduce_whole_vectors(const reduction_launch& l, std::uint64_t first,
                                                 std::uint64_t vectors) {
    constexpr unsigned elements = 16 / sizeof(T), loads = reduction_loads<T, Rule>;
    const std::uint64_t begin = l.head * sizeof(T) + first * 16;
    typename Rule::running sum[loads][elements] = {};
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (int r = 0; r < l.ranks; ++r) {
        vector16 loaded[loads] = {};
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
        for (unsigned i = 0; i < loads; ++i)
            if (first + i * reduction_threads < vectors)
                loaded[i] = load_vector(l.in[r] + begin + i * reduction_threads * 16);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
        for (unsigned i = 0; i < loads; ++i) {
            T x[elements];
            __builtin_memcpy(x, &loaded[i], sizeof x);
            for (unsigned e = 0; e < elements; ++e) {
                const auto number = Rule::begin(x[e], l);
                sum[i][e] = r == 0 ? number : Rule::add(sum[i][e], number);
            }
        }
    }
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (unsigned i = 0; i < loads; ++i) {
        if (first + i * reduction_threads >= vectors) continue;
        T y[elements];
        vector16 stored;
        for (unsigned e = 0; e < elements; ++e) y[e] = Rule::end(sum[i][e], l);
        __builtin_memcpy(&stored, y, sizeof stored);
        for (int p = 0; p < l.places; ++p)
            *reinterpret_cast<vector16*>(l.out[p] + begin + i * reduction_threads * 16) = stored;
    }
}

// The kernel's body. It reduces whole vectors where inputs and outputs are aligned alike, and
// single elements before and after them.
template <class T, class Rule>
HVD_KERNEL_HOST_DEVICE void reduce_block(const reduction_launch& l, std::uint64_t block,
                                         unsigned thread) {
    constexpr std::uint64_t each = elements_per_reduction_block<T, Rule>, elements = 16 / sizeof(T);
    const std::uint64_t vectors = (l.count - l.head) / elements,
                        first = block * (each / elements) + thread;
    if (first < vectors) reduce_whole_vectors<T, Rule>(l, first, vectors);
    const std::uint64_t end = (block + 1) * each < l.head ? (block + 1) * each : l.head;
    for (std::uint64_t i = block * each + thread; i < end; i += reduction_threads)
        reduce_element<T, Rule>(l, i);
    const std::uint64_t tail = l.head + vectors * elements + thread;
    if (block == 0 && tail < l.count) reduce_element<T, Rule>(l, tail);
}

template <class T, class F>
cudaError_t with_float(int op, F&& f) {
    switch (op) {
        case op::sum::id:
        case op::average::id: return f.template operator()<T, number_reduction<T, op::sum>>();
        case op::min::id: return f.template operator()<T, number_reduction<T, op::min>>();
        case op::max::id: return f.template operator()<T, number_reduction<T, op::max>>();
        case op::product::id: return f.template operator()<T, number_reduction<T, op::product>>();
        default: return cudaErrorInvalidValue;
    }
}

// Uses T if the operation depends on the sign, otherwise U.
template <class T, class U, class F>
cudaError_t with_integer(int op, F&& f) {
    switch (op) {
        case op::average::id: return f.template operator()<T, number_reduction<T, op::average>>();
        case op::min::id: return f.template operator()<T, number_reduction<T, op::min>>();
        case op::max::id: return f.template operator()<T, number_reduction<T, op::max>>();
        case op::sum::id: return f.template operator()<U, number_reduction<U, op::sum>>();
        case op::product::id: return f.template operator()<U, number_reduction<U, op::product>>();
        case op::bit_and::id: return f.template operator()<U, number_reduction<U, op::bit_and>>();
        case op::bit_or::id: return f.template operator()<U, number_reduction<U, op::bit_or>>();
        case op::bit_xor::id: return f.template operator()<U, number_reduction<U, op::bit_xor>>();
        default: return cudaErrorInvalidValue;
    }
}

// Calls `f` with the number and the rule of the launch.
template <class F>
cudaError_t with_reduction(const reduction_launch& l, F&& f) {
    switch (l.id) {
        case dtype::int8: return with_integer<std::int8_t, std::uint8_t>(l.op, f);
        case dtype::uint8: return with_integer<std::uint8_t, std::uint8_t>(l.op, f);
        case dtype::int16: return with_integer<std::int16_t, std::uint16_t>(l.op, f);
        case dtype::uint16: return with_integer<std::uint16_t, std::uint16_t>(l.op, f);
        case dtype::int32: return with_integer<std::int32_t, std::uint32_t>(l.op, f);
        case dtype::uint32: return with_integer<std::uint32_t, std::uint32_t>(l.op, f);
        case dtype::int64: return with_integer<std::int64_t, std::uint64_t>(l.op, f);
        case dtype::uint64: return with_integer<std::uint64_t, std::uint64_t>(l.op, f);
        case dtype::float16: return with_float<float16_bits>(l.op, f);
        case dtype::bfloat16: return with_float<bfloat16_bits>(l.op, f);
        case dtype::float32: return with_float<float>(l.op, f);
        case dtype::float64: return with_float<double>(l.op, f);
        default: return cudaErrorInvalidValue;
    }
}

#ifdef __CUDACC__

template <class T, class Rule>
__global__ void __launch_bounds__(reduction_threads, 4)
    reduce_numbers(const __grid_constant__ reduction_launch launch) {
    reduce_block<T, Rule>(launch, blockIdx.x, threadIdx.x);
}

inline cudaError_t reduce_on_device(const reduction_launch& launch, cudaStream_t stream) {
    return with_reduction(launch, [&]<class T, class Rule>() {
        reduce_numbers<T, Rule>
            <<<unsigned(reduction_blocks<T, Rule>(launch)), reduction_threads, 0, stream>>>(launch);
        return cudaGetLastError();
    });
}
static const registered reduction_registered(kernels.reduction, &reduce_on_device);

#endif

}  // namespace detail
}  // namespace v0
}  // namespace hvd
