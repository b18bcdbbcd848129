// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../call.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// How the tensors of a call lie, in bytes. What a rank brings is one part, or one for each rank.
struct ipc_parts {
    const device_call& call;
    int size;
    // Of an alltoall with counts: those of rank 0 to each, of rank 1, …; without it only this
    // rank's own are known.
    const std::uint64_t* sent = nullptr;

    bool is_uneven_exchange() const {
        return call.kind == collective::alltoall && !call.counts.empty();
    }
    bool has_parts() const {
        return call.kind == collective::reduce_scatter || call.kind == collective::scatter ||
               call.kind == collective::alltoall;
    }
    int parts() const { return has_parts() ? size : 1; }

    // Whether others read this rank's input.
    bool gives(int rank) const {
        const bool of_root = call.kind == collective::broadcast || call.kind == collective::scatter;
        return call.kind != collective::barrier && (!of_root || call.root == rank);
    }
    // Whether others write this rank's output; a rank writes its own anyway.
    bool is_given(int rank) const {
        return call.kind == collective::allreduce ||
               (call.kind == collective::reduce && call.root == rank);
    }

    // Whether this rank's output is what others bring, as it is.
    bool copies(int rank) const {
        if (call.kind == collective::broadcast) return call.root != rank;
        if (call.kind == collective::gather) return call.root == rank;
        return !call.reduces();
    }

    // What `rank` brings for `part`.
    std::size_t given(int rank, int part) const {
        if (call.kind != collective::alltoall) return call.bytes_of(has_parts() ? part : rank);
        return (sent != nullptr ? std::size_t(sent[rank * size + part]) : call.count_of(part)) *
               call.element_bytes;
    }
    std::size_t given_at(int rank, int part) const {
        std::size_t at = 0;
        for (int p = 0; p < part; ++p) at += given(rank, p);
        return at;
    }
    std::size_t given_by(int rank) const { return given_at(rank, parts()); }
    std::size_t longest() const {
        std::size_t most = 0;
        for (int r = 0; r < size; ++r)
            for (int p = 0; p < parts(); ++p)
                if (gives(r) && given(r, p) > most) most = given(r, p);
        return most;
    }

    // Where a rank has what comes from another.
    std::size_t taken_at(int from) const {
        if (call.kind != collective::allgather && call.kind != collective::gather &&
            call.kind != collective::alltoall)
            return 0;
        std::size_t elements = 0;
        for (int p = 0; p < from; ++p)
            elements +=
                call.kind == collective::alltoall ? call.received_from(p) : call.count_of(p);
        return elements * call.element_bytes;
    }
    std::size_t taken_by(int rank) const {
        switch (call.kind) {
            case collective::reduce:
            case collective::gather:
                if (call.root != rank) return 0;
                break;
            case collective::reduce_scatter:
            case collective::scatter: return call.bytes_of(rank);
            case collective::barrier: return 0;
            default: break;
        }
        return call.kind == collective::allreduce || call.kind == collective::reduce ||
                       call.kind == collective::broadcast
                   ? call.bytes_of(rank)
                   : taken_at(size);
    }

    // Whether this rank writes over what others still read; all else that is in place does not.
    bool overwrites_input() const {
        return call.kind == collective::alltoall && call.in == call.out;
    }
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
