// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../kernel/copy.hpp"
#include "operation.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Walks over the bytes [begin, begin + bytes) of an operation, one segment after another:
//
//     for (list_segment s(op, begin, bytes); s.next();) …
//
// A segment lies in one tensor. The bytes of an operation are those of one tensor, or of a list of
// tensors, each of which begins at its offset. Results go to the tensors that an update names, if
// there is one.
class list_segment {
public:
    std::size_t tensor = 0;  // its number in the list
    std::size_t at = 0;      // where it begins in the tensor
    std::size_t bytes = 0;
    const std::byte* in = nullptr;
    std::byte* out = nullptr;

    list_segment(const operation& op, std::size_t begin, std::size_t bytes_of_all)
        : op_(op), begin_(begin), end_(begin + bytes_of_all) {
        std::size_t high = op.tensors.size();
        while (high - tensor_ > 1) {  // finds the last tensor that begins at `begin` or before
            const std::size_t middle = (tensor_ + high) / 2;
            (op.offsets[middle] <= begin ? tensor_ : high) = middle;
        }
    }

    bool next() {
        if (begin_ >= end_) return false;
        const fused_update* const update = op_.update;
        if (op_.tensors.empty())
            return set(begin_, end_ - begin_, op_.in,
                       update != nullptr ? update->targets[0].data : op_.out);
        while (begin_ - op_.offsets[tensor_] >= op_.tensors[tensor_].bytes()) ++tensor_;
        const tensor_ref& here = op_.tensors[tensor_];
        const std::size_t first = begin_ - op_.offsets[tensor_], rest = here.bytes() - first;
        tensor = tensor_;
        return set(first, rest < end_ - begin_ ? rest : end_ - begin_, here.data,
                   update != nullptr ? update->targets[tensor_].data : here.data);
    }

private:
    bool set(std::size_t first, std::size_t n, const std::byte* from, std::byte* to) {
        at = first;
        bytes = n;
        in = from + first;
        out = to + first;
        begin_ += n;
        return true;
    }

    const operation& op_;
    std::size_t begin_, end_, tensor_ = 0;
};

inline void gather_bytes(const operation& op, std::size_t begin, std::size_t bytes, std::byte* to) {
    for (list_segment s(op, begin, bytes); s.next(); to += s.bytes) copy_bytes(to, s.in, s.bytes);
}

// The bytes that the results of an operation replace.
inline void gather_targets(const operation& op, std::size_t begin, std::size_t bytes,
                           std::byte* to) {
    for (list_segment s(op, begin, bytes); s.next(); to += s.bytes) copy_bytes(to, s.out, s.bytes);
}

inline void scatter_bytes(const operation& op, std::size_t begin, std::size_t bytes,
                          const std::byte* from) {
    for (list_segment s(op, begin, bytes); s.next(); from += s.bytes)
        copy_bytes(s.out, from, s.bytes);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
