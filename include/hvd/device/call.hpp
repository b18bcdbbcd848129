// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <bit>
#include <memory>

#include "../platform/cuda_api.hpp"
#include "../transport/collective_call.hpp"

namespace hvd::inline v0::detail {

// The words for a call in errors: its kind, with the user's name if it has one.
class call_label {
public:
    call_label(const char* kind, std::string_view name) : text_(kind) {
        if (name.empty()) return;
        char cut[sizeof call_header::name];
        store(cut, name);
        named_ = std::make_shared<const message>(text(kind, " '", cut, "'"));
        text_ = named_->c_str();
    }

    const char* c_str() const noexcept { return text_; }
    // Keeps the text.
    const std::shared_ptr<const message>& kept() const noexcept { return named_; }

private:
    const char* text_;
    std::shared_ptr<const message> named_;
};

// Returns the header that ranks compare for calls that are enqueued together: that of the first
// call, with a hash over all of them.
inline call_header header_of(std::span<const collective_call> calls, int size) {
    hash content;
    for (const collective_call& call : calls) {
        content.add(std::uint64_t(call.entry.kind))
            .add(std::uint64_t(call.entry.id))
            .add(call.element_bytes)
            .add(std::uint64_t(call.entry.op))
            .add(std::uint64_t(call.entry.root));
        content.add(call.counts.empty() ? call.entry.count : std::uint64_t(-1));
        if (call.entry.kind != collective::alltoall)
            for (const std::size_t n : call.counts) content.add(n);
    }
    if (calls.empty()) return {};
    call_header header = calls.front().entry;
    header.fused = calls.size() > 1;
    if (!calls.front().counts.empty()) header.count = calls.front().total(size);
    header.content = content.value();
    return header;
}

// Returns the factor before the sum of a mean that is computed in the elements' own type, since no
// float16 holds the sum of two large ones. A power of two at or below 1 / ranks rounds nothing but
// subnormals.
inline double factor_before_mean(dtype id, int ranks) {
    return id == dtype::float16 ? 1.0 / std::bit_ceil(unsigned(ranks)) : 1;
}

// Returns the reason to refuse a tensor in memory of the host, or nothing.
inline message reason_to_refuse(std::string_view tensor, const void* data, std::size_t count,
                                int rank, int device) {
    const current_device here(device, rank);
    if (data == nullptr || count == 0 || !is_out_of_reach(data)) return {};
    return text(tensor, " of ", count, " elements is in host memory that GPU ", device,
                " can't reach, expected device memory");
}

// Returns the same for the tensors that a rank gives and takes.
[[gnu::cold]] inline message reason_to_refuse(const collective_call& call, int rank, int size,
                                              int device) {
    const collective kind = call.entry.kind;
    const bool is_root = call.entry.root == rank,
               one_gives = kind == collective::broadcast || kind == collective::scatter,
               one_takes = kind == collective::reduce || kind == collective::gather;
    const std::size_t all = call.total(size), own = call.count_of(rank);
    const bool splits = kind == collective::reduce_scatter || kind == collective::scatter,
               joins = kind == collective::allgather || kind == collective::gather,
               exchanges = kind == collective::alltoall;
    if (!one_gives || is_root) {
        message why =
            reason_to_refuse("the input", call.in, splits || exchanges ? all : own, rank, device);
        if (!why.empty()) return why;
    }
    if (one_takes && !is_root) return {};
    const std::size_t taken = exchanges ? call.total_received(size) : joins ? all : own;
    return reason_to_refuse("the output", call.out, taken, rank, device);
}

// Does the call of a rank that is alone: its output is its input.
inline void copy_alone(const collective_call& call, cudaStream_t stream, int rank) {
    if (call.entry.kind != collective::barrier && call.in != call.out)
        copy_async(call.out, call.in, call.bytes_of(0), cudaMemcpyDeviceToDevice, stream, rank);
}

}  // namespace hvd::inline v0::detail
