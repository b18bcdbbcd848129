// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The copy kernel packs, unpacks, scales and casts any number of tensors in one launch. Its body is
// a function of a tile and a thread, which a host compiler takes as well. The launch needs nvcc. A
// program that wants kernels compiles one .cu file that includes kernels.cuh, or this alone.

#include "elements.cuh"
#include "tile.hpp"

namespace hvd::inline v0::detail {

// The number of elements that fill 16 bytes of the narrower type.
template <class From, class To>
constexpr unsigned elements_per_vector_of =
    16 / (sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To));

// Copies one element. It is computed in float or double and rounded once.
template <class From, class To>
HVD_KERNEL_HOST_DEVICE void copy_element(const From& from, To& to, double scale) {
    if constexpr (sizeof(From) == 1) {
        to = from;
    } else {
        const auto x = widened(from);
        narrow_to(to, x * static_cast<decltype(widened(from))>(scale));
    }
}

// Loads 16 * N bytes from any address. It shifts the aligned vectors around them together, and so
// reads up to 15 bytes before and after them.
template <int N, bool Aligned>
HVD_KERNEL_HOST_DEVICE void load_vectors(const std::byte* from, vector16 (&vectors)[N]) {
    if constexpr (Aligned) {
        for (int i = 0; i < N; ++i) vectors[i] = load_vector(from + 16 * i);
    } else {
        const unsigned offset = unsigned(reinterpret_cast<std::uintptr_t>(from) % 16),
                       shift = offset % 8 * 8;
        const std::byte* const first = from - offset;
        unsigned long long words[2 * N + 2];
        for (int i = 0; i <= N; ++i) {
            const vector16 x = load_vector(first + 16 * i);
            words[2 * i] = x.low;
            words[2 * i + 1] = x.high;
        }
        // Takes a word's bytes from `shift` on, then the next word's. A conditional skips whole
        // words; an index would take the array out of registers.
        const auto word = [&](int i) {
            const unsigned long long a = offset < 8 ? words[i] : words[i + 1];
            const unsigned long long b =
                offset < 8 ? words[i + 1] : words[i + 2 < 2 * N + 2 ? i + 2 : i + 1];
            return (a >> shift) | ((b << 1) << (63 - shift));
        };
        for (int i = 0; i < N; ++i) vectors[i] = {word(2 * i), word(2 * i + 1)};
    }
}

template <class From, class To, bool Aligned>
HVD_KERNEL_HOST_DEVICE void copy_vectors(const std::byte* from, std::byte* to, unsigned vectors,
                                         double scale, unsigned thread) {
    constexpr unsigned elements = elements_per_vector_of<From, To>;
    constexpr int in = int(elements * sizeof(From) / 16), out = int(elements * sizeof(To) / 16);
    vector16 loaded[tile_loads][in];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (unsigned i = 0; i < tile_loads; ++i)
        if (const unsigned c = thread + i * tile_threads; c < vectors)
            load_vectors<in, Aligned>(from + std::size_t(c) * 16 * in, loaded[i]);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (unsigned i = 0; i < tile_loads; ++i) {
        const unsigned c = thread + i * tile_threads;
        if (c >= vectors) continue;
        vector16* const target = reinterpret_cast<vector16*>(to + std::size_t(c) * 16 * out);
        if constexpr (sizeof(From) == 1) {
            for (int k = 0; k < out; ++k) target[k] = loaded[i][k];
        } else {
            From x[elements];
            To y[elements];
            vector16 stored[out];
            __builtin_memcpy(x, loaded[i], sizeof x);
            for (unsigned k = 0; k < elements; ++k) copy_element(x[k], y[k], scale);
            __builtin_memcpy(stored, y, sizeof y);
            for (int k = 0; k < out; ++k) target[k] = stored[k];
        }
    }
}

// Copies one thread's share of a tile: whole vectors where the target is aligned, elements at both
// ends. If the source is not aligned, the ends have a vector more, so that no byte outside of the
// tensor is read.
template <class From, class To>
HVD_KERNEL_HOST_DEVICE void copy_tile_as(const tile& t, unsigned thread) {
    constexpr unsigned elements = elements_per_vector_of<From, To>;
    unsigned head = unsigned((16 - reinterpret_cast<std::uintptr_t>(t.to) % 16) % 16 / sizeof(To));
    const bool aligned = (reinterpret_cast<std::uintptr_t>(t.from) + head * sizeof(From)) % 16 == 0;
    if (!aligned) head += elements;
    if (head > t.count) head = t.count;
    unsigned vectors = (t.count - head) / elements;
    if (!aligned && vectors > 0) --vectors;
    const std::byte* const from = t.from + head * sizeof(From);
    std::byte* const to = t.to + head * sizeof(To);
    if (aligned) copy_vectors<From, To, true>(from, to, vectors, t.scale, thread);
    else copy_vectors<From, To, false>(from, to, vectors, t.scale, thread);
    const From* const x = reinterpret_cast<const From*>(t.from);
    To* const y = reinterpret_cast<To*>(t.to);
    const unsigned tail = head + vectors * elements;
    if (thread < head) copy_element(x[thread], y[thread], t.scale);
    if (thread < t.count - tail) copy_element(x[tail + thread], y[tail + thread], t.scale);
}

HVD_KERNEL_HOST_DEVICE inline void copy_tile(const tile& t, unsigned thread) {
    switch (t.kind) {
        case copy_kind::bytes: return copy_tile_as<unsigned char, unsigned char>(t, thread);
        case copy_kind::float16: return copy_tile_as<float16_bits, float16_bits>(t, thread);
        case copy_kind::bfloat16: return copy_tile_as<bfloat16_bits, bfloat16_bits>(t, thread);
        case copy_kind::float32: return copy_tile_as<float, float>(t, thread);
        case copy_kind::float64: return copy_tile_as<double, double>(t, thread);
        case copy_kind::float32_to_float16: return copy_tile_as<float, float16_bits>(t, thread);
        case copy_kind::float16_to_float32: return copy_tile_as<float16_bits, float>(t, thread);
        case copy_kind::float32_to_bfloat16: return copy_tile_as<float, bfloat16_bits>(t, thread);
        case copy_kind::bfloat16_to_float32: return copy_tile_as<bfloat16_bits, float>(t, thread);
        default: return;
    }
}

#ifdef __CUDACC__

template <int>
__global__ void __launch_bounds__(tile_threads)
    copy_tiles(const __grid_constant__ tile_launch launch) {
    if (!launch.is_stopped()) copy_tile(launch.of_block(blockIdx.x), threadIdx.x);
}

inline cudaError_t copy_on_device(const tile_launch& launch, cudaStream_t stream) {
    return launch_kernel(copy_tiles<0>, launch.blocks, tile_threads, launch, stream);
}
inline cudaError_t load_tile_kernels() { return load_all(copy_tiles<0>); }
static const registered tiles_registered(kernels.tiles, &copy_on_device);
static const registered tiles_loaded(kernels.load_tiles, &load_tile_kernels);

#endif

}  // namespace hvd::inline v0::detail
