// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../kernel/copy.hpp"
#include "operation.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A part of an operation's bytes that lies in one tensor: number `tensor`, from `at` bytes into it.
struct list_segment {
    std::size_t tensor;
    std::size_t at;
    std::size_t bytes;
    const std::byte* in;
    std::byte* out;
};

// Calls f with each segment of the bytes [begin, begin + bytes) of an operation, in order. Its
// bytes are those of one tensor, or of a list of tensors, each beginning at its offset. Results go
// to the tensors that an update names, if there is one.
template <class F>
void for_each_list_segment(const operation& op, std::size_t begin, std::size_t bytes, F&& f) {
    if (op.tensors.empty()) {
        std::byte* const out = op.update != nullptr ? op.update->targets[0].data : op.out;
        if (bytes > 0) f(list_segment{0, begin, bytes, op.in + begin, out + begin});
        return;
    }
    const slice<const tensor_ref> targets = op.update != nullptr ? op.update->targets : op.tensors;
    std::size_t low = 0,
                high = op.tensors.size();  // the last tensor that begins at or before `begin`
    while (high - low > 1) {
        const std::size_t middle = (low + high) / 2;
        (op.offsets[middle] <= begin ? low : high) = middle;
    }
    for (const std::size_t end = begin + bytes; begin < end; ++low) {
        const tensor_ref& tensor = op.tensors[low];
        const std::size_t at = begin - op.offsets[low];
        if (at >= tensor.bytes()) continue;
        const std::size_t n = tensor.bytes() - at < end - begin ? tensor.bytes() - at : end - begin;
        f(list_segment{low, at, n, tensor.data + at, targets[low].data + at});
        begin += n;
    }
}

inline void gather_bytes(const operation& op, std::size_t begin, std::size_t bytes, std::byte* to) {
    for_each_list_segment(op, begin, bytes, [&](const list_segment& s) {
        copy_bytes(to, s.in, s.bytes);
        to += s.bytes;
    });
}

// What is there where the results go.
inline void gather_targets(const operation& op, std::size_t begin, std::size_t bytes,
                           std::byte* to) {
    for_each_list_segment(op, begin, bytes, [&](const list_segment& s) {
        copy_bytes(to, s.out, s.bytes);
        to += s.bytes;
    });
}

inline void scatter_bytes(const operation& op, std::size_t begin, std::size_t bytes,
                          const std::byte* from) {
    for_each_list_segment(op, begin, bytes, [&](const list_segment& s) {
        copy_bytes(s.out, from, s.bytes);
        from += s.bytes;
    });
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
