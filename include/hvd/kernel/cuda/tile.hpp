// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <vector>

#include "../../core/dtype.hpp"
#include "../host_device.hpp"
#include "registry.hpp"

namespace hvd::inline v0::detail {

// The conversion that a copy on the device does. `bytes` only moves the elements.
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

// The size of an element before the copy, and after it.
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

// One block of threads computes to[i] = from[i] * scale, converted, for `count` elements. `to` and
// `from` are the same memory or do not overlap.
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

// The number of elements that fill 16 bytes of the narrower type. The wider type takes 16 or 32
// bytes.
constexpr std::size_t elements_per_vector(copy_kind kind) {
    return 16 / (bytes_from(kind) < bytes_to(kind) ? bytes_from(kind) : bytes_to(kind));
}
constexpr std::size_t elements_per_tile(copy_kind kind) {
    return tile_threads * tile_loads * elements_per_vector(kind);
}

// The arguments of one launch: a block for each tile in device memory, or for each part of one long
// tensor.
struct tile_launch {
    const tile* tiles;  // null: each block cuts its tile from `whole`
    tile whole;         // its count is the length of one tile
    std::uint64_t elements;
    unsigned blocks;
    const std::uint32_t* stop = nullptr;  // if its word is not 0, nothing is copied

    HVD_KERNEL_HOST_DEVICE bool is_stopped() const { return stop != nullptr && *stop != 0; }

    HVD_KERNEL_HOST_DEVICE tile of_block(unsigned block) const {
        if (tiles != nullptr) return tiles[block];
        tile part = whole;
        const std::uint64_t first = std::uint64_t(block) * whole.count;
        if (elements - first < part.count) part.count = std::uint32_t(elements - first);
        // the elements are not cast, so the size is that of both
        const std::uint64_t bytes = first * bytes_from(whole.kind);
        part.from += bytes;
        part.to += bytes;
        return part;
    }
};

inline bool has_kernels() { return kernels.tiles != nullptr; }

inline void launch_tiles_of(const tile* tiles, std::size_t blocks, cudaStream_t stream, int rank,
                            const std::uint32_t* stop = nullptr) {
    if (blocks > 0)
        check_cuda(kernels.tiles({tiles, {}, 0, unsigned(blocks), stop}, stream),
                   "launch of hvd's pack kernel", rank);
}

inline void launch_scale(std::byte* data, std::size_t count, copy_kind kind, double scale,
                         cudaStream_t stream, int rank) {
    if (count == 0) return;
    const std::size_t each = elements_per_tile(kind);
    check_cuda(kernels.tiles({nullptr,
                              {data, data, scale, std::uint32_t(each), kind},
                              count,
                              unsigned((count + each - 1) / each)},
                             stream),
               "launch of hvd's scale kernel", rank);
}

// Returns the conversion from one element type to another, or `none` if no copy does it. Only
// floats are scaled.
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

// Cuts a tensor of `count` elements into tiles, so that the number of blocks follows its size.
inline void cut_into_tiles(std::vector<tile>& tiles, const std::byte* from, std::byte* to,
                           std::size_t count, copy_kind kind, double scale) {
    const std::size_t each = elements_per_tile(kind);
    for (std::size_t first = 0; first < count; first += each)
        tiles.push_back({from + first * bytes_from(kind), to + first * bytes_to(kind), scale,
                         std::uint32_t(count - first < each ? count - first : each), kind});
}

}  // namespace hvd::inline v0::detail
