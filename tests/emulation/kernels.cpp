// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Launches of hvd's kernels. Their bodies, which a GPU runs too, work on the memory that the device
// sees.

#include <memory>
#include <optional>

#include <hvd/kernel/cuda/kernels.cuh>

#include "emulation.hpp"

namespace {

using hvd::detail::tile;

tile seen_by_device(tile t) {
    t.from = emulation::seen_by_device(t.from, t.count * hvd::detail::bytes_from(t.kind));
    t.to = emulation::seen_by_device(t.to, t.count * hvd::detail::bytes_to(t.kind));
    return t;
}

hvd::detail::reduction_launch seen_by_device(hvd::detail::reduction_launch l) {
    const std::size_t bytes = l.count * hvd::detail::bytes_of_number(l.id);
    for (int r = 0; r < l.ranks; ++r) l.in[r] = emulation::seen_by_device(l.in[r], bytes);
    for (int p = 0; p < l.places; ++p) l.out[p] = emulation::seen_by_device(l.out[p], bytes);
    return l;
}

}  // namespace

namespace hvd {
inline namespace v0 {
namespace detail {

cudaError_t launch_tiles(const tile_launch& launch, cudaStream_t stream) {
    if (const int code = emulation::faulted("launch_tiles")) return cudaError_t(code);
    if (launch.blocks == 0) return cudaErrorInvalidValue;
    if (const cudaError_t no = emulation::refused(stream)) return no;
    emulation::launch(
        stream, int(launch.blocks), int(tile_threads), [launch](int block, int thread) {
            tile_launch seen = launch;
            if (seen.tiles != nullptr)
                seen.tiles = reinterpret_cast<const tile*>(
                    emulation::seen_by_device(launch.tiles, launch.blocks * sizeof(tile)));
            copy_tile(seen_by_device(seen.of_block(unsigned(block))), unsigned(thread));
        });
    return cudaSuccess;
}

cudaError_t launch_reduction(const reduction_launch& launch, cudaStream_t stream) {
    if (const int code = emulation::faulted("launch_reduction")) return cudaError_t(code);
    if (launch.count == 0 || launch.ranks < 1 || launch.places < 1) return cudaErrorInvalidValue;
    if (const cudaError_t no = emulation::refused(stream)) return no;
    return with_reduction(launch, [&]<class T, class Rule>() {
        const auto seen = std::make_shared<
            std::optional<reduction_launch>>();  // looked up once, when the launch runs
        emulation::launch(stream, int(reduction_blocks<T, Rule>(launch)), int(reduction_threads),
                          [launch, seen](int block, int thread) {
                              if (!*seen) *seen = seen_by_device(launch);
                              reduce_block<T, Rule>(**seen, std::uint64_t(block), unsigned(thread));
                          });
        return cudaSuccess;
    });
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
