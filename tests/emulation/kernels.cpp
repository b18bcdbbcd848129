// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Launches of hvd's kernel: its body, which the GPU runs too, on the memory that the device sees.

#include <hvd/kernel/pack.cuh>

#include "emulation.hpp"

namespace {

using hvd::detail::tile;

tile seen_by_device(tile t) {
    t.from = emulation::seen_by_device(t.from, t.count * hvd::detail::bytes_from(t.kind));
    t.to = emulation::seen_by_device(t.to, t.count * hvd::detail::bytes_to(t.kind));
    return t;
}

}  // namespace

namespace hvd {
inline namespace v0 {
namespace detail {

cudaError_t launch_tiles(const tile_launch& launch, cudaStream_t stream) {
    if (const int code = emulation::faulted("launch_tiles")) return cudaError_t(code);
    if (launch.blocks == 0) return cudaErrorInvalidValue;
    emulation::launch(stream, int(launch.blocks), int(tile_threads), [launch](int block, int thread) {
        tile_launch seen = launch;
        if (seen.tiles != nullptr)
            seen.tiles = reinterpret_cast<const tile*>(emulation::seen_by_device(launch.tiles, launch.blocks * sizeof(tile)));
        copy_tile(seen_by_device(seen.of_block(unsigned(block))), unsigned(thread));
    });
    return cudaSuccess;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
