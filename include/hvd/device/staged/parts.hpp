// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../transport/collective_call.hpp"

namespace hvd::inline v0::detail {

// The parts of a call's tensors, in bytes. A rank gives one part, or one part to each rank. In an
// alltoall only this rank's own numbers are known.
struct call_parts {
    const collective_call& call;
    int size;

    collective kind() const { return call.entry.kind; }
    bool is_root(int rank) const { return call.entry.root == rank; }

    // True if a rank gives one part to each rank.
    bool has_parts() const {
        return kind() == collective::reduce_scatter || kind() == collective::scatter ||
               kind() == collective::alltoall;
    }
    int parts() const { return has_parts() ? size : 1; }

    // True if a rank takes one part from each rank.
    bool takes_parts() const {
        return kind() == collective::allgather || kind() == collective::gather ||
               kind() == collective::alltoall;
    }

    // True if other ranks read this rank's input.
    bool gives(int rank) const {
        const bool of_root = kind() == collective::broadcast || kind() == collective::scatter;
        return kind() != collective::barrier && (!of_root || is_root(rank));
    }
    // True if this rank's output is a copy of the parts that other ranks give.
    bool copies(int rank) const {
        if (kind() == collective::broadcast) return !is_root(rank);
        if (kind() == collective::gather) return is_root(rank);
        return !call.reduces();
    }

    // The bytes that `rank` gives for `part`, and where they begin in its input.
    std::size_t given(int rank, int part) const { return call.bytes_of(has_parts() ? part : rank); }
    std::size_t given_at(int rank, int part) const {
        std::size_t at = 0;
        for (int p = 0; p < part; ++p) at += given(rank, p);
        return at;
    }
    std::size_t given_by(int rank) const { return given_at(rank, parts()); }

    // The bytes that this rank takes from another, and where they begin in its output.
    std::size_t taken(int from) const {
        const std::size_t elements =
            kind() == collective::alltoall ? call.received_from(from) : call.count_of(from);
        return elements * call.element_bytes;
    }
    std::size_t taken_at(int from) const {
        std::size_t at = 0;
        for (int p = 0; takes_parts() && p < from; ++p) at += taken(p);
        return at;
    }
    std::size_t taken_by(int rank) const {
        const bool of_root = kind() == collective::reduce || kind() == collective::gather;
        if (kind() == collective::barrier || (of_root && !is_root(rank))) return 0;
        return takes_parts() ? taken_at(size) : call.bytes_of(rank);
    }
};

}  // namespace hvd::inline v0::detail
