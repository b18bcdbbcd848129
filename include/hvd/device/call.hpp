// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <bit>

#include "../platform/cuda_api.hpp"
#include "../protocol/call_header.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A reduction in host memory on a communicator of the host, with the types that only its caller
// knew.
struct host_reduction;

// One collective of device tensors without its types. All counts are elements.
struct device_call {
    collective kind = collective::barrier;
    dtype id = dtype::byte;
    int op = 0;
    std::uint8_t mode = 0;  // rounding, as headers have it
    int root = 0;
    std::size_t element_bytes = 1;
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    // What each rank gives; of reduce_scatter and scatter: what each gets; of alltoall: what each
    // sends to each.
    std::size_t count = 0;
    // In place of `count`, one per rank, where they differ: of alltoall what this rank sends, else
    // alike everywhere.
    std::span<const std::size_t> counts{};
    std::span<const std::size_t> receive_counts{};  // of alltoall
    double prescale = 1, postscale = 1;
    // For backends that reduce in host memory.
    void (*reduce_on_host)(const host_reduction&) = nullptr;
    const void* function = nullptr;  // the operation itself

    std::size_t count_of(int rank) const {
        return counts.empty() ? count : counts[std::size_t(rank)];
    }
    std::size_t received_from(int rank) const {
        return receive_counts.empty() ? count : receive_counts[std::size_t(rank)];
    }
    std::size_t bytes_of(int rank) const { return count_of(rank) * element_bytes; }

    std::size_t total(int size) const {
        std::size_t sum = 0;
        for (int p = 0; p < size; ++p) sum += count_of(p);
        return sum;
    }
    std::size_t total_received(int size) const {
        std::size_t sum = 0;
        for (int p = 0; p < size; ++p) sum += received_from(p);
        return sum;
    }
    bool reduces() const {
        return kind == collective::allreduce || kind == collective::reduce ||
               kind == collective::reduce_scatter;
    }
};

// What each rank's elements are multiplied by before a mean's sum, where that is made in their own
// type: no float16 holds the sum of two that are large. A power of two at or below 1 / ranks rounds
// nothing but subnormals.
inline double factor_before_mean(dtype id, int ranks) {
    return id == dtype::float16 ? 1.0 / std::bit_ceil(unsigned(ranks)) : 1;
}

// A rank that is alone moves what it has to where it wants it.
inline void copy_alone(const device_call& call, cudaStream_t stream, int rank) {
    if (call.kind != collective::barrier && call.in != call.out)
        copy_async(call.out, call.in, call.bytes_of(0), cudaMemcpyDeviceToDevice, stream, rank);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
