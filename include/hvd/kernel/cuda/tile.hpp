// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <vector>

#include "../../core/dtype.hpp"
#include "../../platform/cuda_api.hpp"
#include "../host_device.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What a copy on the device makes of elements; those that are only moved are bytes.
enum class copy_kind : std::uint32_t {
    bytes,
    float16,
    bfloat16,
    float32,
    float64,
    float32_to_float16,
    float16_to_float32,
    float32_to_bfloat16,
    bfloat16_to_float32,
    none,
};

// How many bytes an element has before and after.
HVD_KERNEL_HOST_DEVICE constexpr std::size_t bytes_from(copy_kind kind) {
    switch (kind) {
        case copy_kind::bytes: return 1;
        case copy_kind::float64: return 8;
        case copy_kind::float32:
        case copy_kind::float32_to_float16:
        case copy_kind::float32_to_bfloat16: return 4;
        default: return 2;
    }
}
constexpr std::size_t bytes_to(copy_kind kind) {
    switch (kind) {
        case copy_kind::float32_to_float16:
        case copy_kind::float32_to_bfloat16: return 2;
        case copy_kind::float16_to_float32:
        case copy_kind::bfloat16_to_float32: return 4;
        default: return bytes_from(kind);
    }
}

// to[i] = from[i] * scale, converted, for `count` elements: the work of one block of threads. The
// two are the same memory or apart.
struct alignas(16) tile {
    const std::byte* from;
    std::byte* to;
    double scale;
    std::uint32_t count;
    copy_kind kind;
};

// A thread has four loads of 16 bytes under way before it uses the first.
constexpr unsigned tile_threads = 256;
constexpr unsigned tile_loads = 4;

// Elements that fill 16 bytes of the narrower type; the wider one's take 16 or 32.
constexpr std::size_t elements_per_chunk(copy_kind kind) {
    return 16 / (bytes_from(kind) < bytes_to(kind) ? bytes_from(kind) : bytes_to(kind));
}
constexpr std::size_t elements_per_tile(copy_kind kind) {
    return tile_threads * tile_loads * elements_per_chunk(kind);
}

// One launch: a block for each of the tiles in device memory, or for each part of one long tensor.
struct tile_launch {
    const tile* tiles;  // null: `whole` is cut by the blocks themselves
    tile whole;         // its count is that of a tile
    std::uint64_t elements;
    unsigned blocks;

    HVD_KERNEL_HOST_DEVICE tile of_block(unsigned block) const {
        if (tiles != nullptr) return tiles[block];
        tile part = whole;
        const std::uint64_t first = std::uint64_t(block) * whole.count;
        if (elements - first < part.count) part.count = std::uint32_t(elements - first);
        const std::uint64_t bytes = first * bytes_from(whole.kind);  // it is not cast
        part.from += bytes;
        part.to += bytes;
        return part;
    }
};

// Enqueues the launch; kernel/pack.cuh, which nvcc compiles, defines it. Weak: programs without
// that file have no kernels and do without packing, and a stand-in may be linked instead.
[[gnu::weak]] cudaError_t launch_tiles(const tile_launch& launch, cudaStream_t stream);

inline bool has_kernels() { return &launch_tiles != nullptr; }

inline void launch_tiles_of(const tile* tiles, std::size_t blocks, cudaStream_t stream, int rank) {
    if (blocks > 0)
        check_cuda(launch_tiles({tiles, {}, 0, unsigned(blocks)}, stream),
                   "launch of hvd's pack kernel", rank);
}

// Multiplies a tensor in place.
inline void launch_scale(std::byte* data, std::size_t count, copy_kind kind, double scale,
                         cudaStream_t stream, int rank) {
    if (count == 0) return;
    const std::size_t each = elements_per_tile(kind);
    check_cuda(launch_tiles({nullptr,
                             {data, data, scale, std::uint32_t(each), kind},
                             count,
                             unsigned((count + each - 1) / each)},
                            stream),
               "launch of hvd's scale kernel", rank);
}

// How elements become those of another type; `none` where there is no such copy. Scales are for
// floats.
constexpr copy_kind copy_between(dtype from, dtype to, bool scaled) {
    if (from == to && !scaled) return copy_kind::bytes;
    if (from == dtype::float32 && to == dtype::float16) return copy_kind::float32_to_float16;
    if (from == dtype::float16 && to == dtype::float32) return copy_kind::float16_to_float32;
    if (from == dtype::float32 && to == dtype::bfloat16) return copy_kind::float32_to_bfloat16;
    if (from == dtype::bfloat16 && to == dtype::float32) return copy_kind::bfloat16_to_float32;
    if (from != to) return copy_kind::none;
    switch (from) {
        case dtype::float16: return copy_kind::float16;
        case dtype::bfloat16: return copy_kind::bfloat16;
        case dtype::float32: return copy_kind::float32;
        case dtype::float64: return copy_kind::float64;
        default: return copy_kind::none;
    }
}

// Cuts a tensor of `count` elements into tiles: as many blocks work on it as it has bytes for.
inline void cut_into_tiles(std::vector<tile>& tiles, const std::byte* from, std::byte* to,
                           std::size_t count, copy_kind kind, double scale) {
    const std::size_t each = elements_per_tile(kind);
    for (std::size_t first = 0; first < count; first += each)
        tiles.push_back({from + first * bytes_from(kind), to + first * bytes_to(kind), scale,
                         std::uint32_t(count - first < each ? count - first : each), kind});
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
