// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../kernel/copy.hpp"
#include "operation.hpp"

namespace hvd::inline v0::detail {

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
        : op_(op), begin_(begin), end_(begin + bytes_of_all), tensors_(op.tensor_count) {
        std::size_t high = tensors_;
        while (high > tensor + 1) {  // the last tensor that begins at `begin` or before it
            const std::size_t middle = (tensor + high) / 2;
            (op.offsets[middle] <= begin ? tensor : high) = middle;
        }
    }

    bool next() {
        if (begin_ >= end_) return false;
        at = begin_;
        bytes = end_ - begin_;
        in = op_.in;
        out = op_.out;
        if (tensors_ > 0) enter_tensor();
        if (op_.update != nullptr) out = op_.update->targets[tensor].data;
        in += at;
        out += at;
        begin_ += bytes;
        return true;
    }

    // The segment's place in the bytes of the operation.
    std::size_t place() const { return begin_ - bytes; }

private:
    void enter_tensor() {
        while (begin_ - op_.offsets[tensor] >= op_.tensors[tensor].bytes()) ++tensor;
        const tensor_ref& here = op_.tensors[tensor];
        at = begin_ - op_.offsets[tensor];
        if (bytes > here.bytes() - at) bytes = here.bytes() - at;
        in = out = here.data;
    }

    const operation& op_;
    std::size_t begin_, end_, tensors_;
};

inline void gather_bytes(const operation& op, std::size_t begin, std::size_t bytes, std::byte* to,
                         store_kind kind = store_kind::vectors) {
    for (list_segment s(op, begin, bytes); s.next(); to += s.bytes)
        store_bytes(kind, to, s.in, s.bytes);
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

}  // namespace hvd::inline v0::detail
