// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/tuning.hpp"
#include "copy.hpp"
#include "plain.hpp"
#include "simd/stream.hpp"

namespace hvd::inline v0::detail {

// True if stores past the caches pay. They pay for several outputs that were not read just before,
// and that are too large for the caches (tuning.hpp has the measurement). They cost with one output
// (64 MiB: 24.4 GB/s without and 21.8 with them) and in place (31.2 and 21.9).
constexpr bool streaming_pays(int places, std::size_t bytes, bool in_place,
                              std::size_t from = tuning::streaming_from) {
    return places > 1 && !in_place && bytes >= from;
}

// A function that changes reduced elements before they are written. It gets `bytes` bytes at
// `values`, which begin `at` bytes into the reduction.
struct reduced_hook {
    void (*call)(void* self, std::size_t at, std::size_t bytes, std::byte* values) = nullptr;
    void* self = nullptr;
};

// Reduces to several outputs, each of which may be exactly an input. It works block by block, so
// that the second output is written from the first cache. args.inputs and args.out are ignored.
inline void reduce_to_places(reduce_function reduce, reduce_args args, std::size_t element_bytes,
                             const std::byte** inputs, std::byte* const* outputs, int places,
                             bool streaming, const reduced_hook& hook = {}) {
    constexpr std::size_t block_bytes = tuning::cached_block;
    alignas(tuning::cache_line) std::byte buffer[block_bytes];
    const std::size_t count = args.count,
                      block = element_bytes < block_bytes ? block_bytes / element_bytes : 1;
    streaming = streaming && element_bytes <= block_bytes;
    args.inputs = inputs;
    for (std::size_t first = 0; first < count; first += block) {
        args.count = count - first < block ? count - first : block;
        const std::size_t at = first * element_bytes, bytes = args.count * element_bytes;
        args.out = streaming || hook.call != nullptr ? buffer : outputs[0] + at;
        reduce(args);
        if (hook.call != nullptr) hook.call(hook.self, at, bytes, buffer);
        for (int r = 0; r < args.ranks; ++r) inputs[r] += bytes;
        for (int p = 0; p < places; ++p) {
            if (streaming) stream_bytes(outputs[p] + at, buffer, bytes);
            else if (outputs[p] + at != args.out) copy_bytes(outputs[p] + at, args.out, bytes);
        }
    }
    if (streaming) finish_streaming();
}

}  // namespace hvd::inline v0::detail
