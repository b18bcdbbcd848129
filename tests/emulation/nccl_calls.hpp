// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "reduction.hpp"

// The calls of the ranks of one communicator, and the data that they move once all ranks are here.
namespace emulation {

enum class kind {
    allreduce,
    reduce,
    reduce_scatter,
    broadcast,
    allgather,
    gather,
    scatter,
    alltoall,
    send,
    receive
};
constexpr const char* kind_names[] = {
    "ncclAllReduce", "ncclReduce",  "ncclReduceScatter", "ncclBroadcast", "ncclAllGather",
    "ncclGather",    "ncclScatter", "ncclAlltoAll",      "ncclSend",      "ncclRecv"};

struct call {
    kind what;
    const void* in;
    void* out;
    std::size_t count;
    ncclDataType_t type;
    ncclRedOp_t op = ncclSum;
    double scalar = 1;
    int root = 0;  // or the peer

    std::string text() const {
        return std::string(kind_names[int(what)]) + " count " + std::to_string(count) + " type " +
               std::to_string(type) + " op " + std::to_string(op) + " root " + std::to_string(root);
    }
};

inline bool same_call(const call& a, const call& b) {
    return std::tie(a.what, a.count, a.type, a.op, a.root) ==
           std::tie(b.what, b.count, b.type, b.op, b.root);
}

// The bytes that a rank brings to a call.
inline std::size_t bytes_brought(const call& c, int rank, int size) {
    const std::size_t bytes = c.count * size_of(c.type), all = bytes * std::size_t(size);
    switch (c.what) {
        case kind::broadcast: return rank == c.root ? bytes : 0;
        case kind::scatter: return rank == c.root ? all : 0;
        case kind::reduce_scatter:
        case kind::alltoall: return all;
        case kind::receive: return 0;
        default: return bytes;
    }
}

// A collective to which all ranks have come, as one of them sees it.
struct collective {
    const call& own;
    int rank;
    std::vector<std::byte*> brought;  // by each rank
    std::vector<double> scalars;      // of each rank

    int size() const { return int(brought.size()); }
    std::size_t element() const { return size_of(own.type); }
};

inline void write_output(const collective& c, std::size_t first, const std::byte* from,
                         std::size_t count) {
    const std::size_t bytes = count * c.element();
    if (bytes == 0) return;
    auto* const to = static_cast<std::byte*>(c.own.out) + first * c.element();
    std::memcpy(seen_by_device(to, bytes), from, bytes);
}

// Reduces so many elements of all ranks, from the first one on.
inline std::vector<std::byte> reduce_all(const collective& c, std::size_t first,
                                         std::size_t count) {
    std::vector<const std::byte*> inputs;
    for (const std::byte* const data : c.brought) inputs.push_back(data + first * c.element());
    return with_type(c.own.type, [&](auto zero) {
        return reduced<decltype(zero)>(c.own.op, inputs, c.scalars, count);
    });
}

// The elements of an allreduce that a rank reduces for all.
inline std::size_t begin_of_slice(const collective& c, int rank) {
    return c.own.count * std::size_t(rank) / std::size_t(c.size());
}

// Reduces the slice of this rank. The result replaces what the rank has brought, of which it is the
// only reader there.
inline void reduce_slice(const collective& c) {
    const std::size_t first = begin_of_slice(c, c.rank),
                      count = begin_of_slice(c, c.rank + 1) - first;
    const auto result = reduce_all(c, first, count);
    if (count > 0)
        std::memcpy(c.brought[std::size_t(c.rank)] + first * c.element(), result.data(),
                    result.size());
}

// Writes what this rank gets from the others.
inline void write_outputs(const collective& c) {
    const std::size_t n = c.own.count, mine = n * std::size_t(c.rank);
    const bool is_root = c.rank == c.own.root;
    const auto brought = [&c](int rank) { return c.brought[std::size_t(rank)]; };
    switch (c.own.what) {
        case kind::allreduce:
            for (int p = 0; p < c.size(); ++p) {
                const std::size_t first = begin_of_slice(c, p);
                write_output(c, first, brought(p) + first * c.element(),
                             begin_of_slice(c, p + 1) - first);
            }
            return;
        case kind::reduce:
            if (is_root) write_output(c, 0, reduce_all(c, 0, n).data(), n);
            return;
        case kind::reduce_scatter: return write_output(c, 0, reduce_all(c, mine, n).data(), n);
        case kind::broadcast: return write_output(c, 0, brought(c.own.root), n);
        case kind::scatter: return write_output(c, 0, brought(c.own.root) + mine * c.element(), n);
        case kind::gather:
            if (!is_root) return;
            [[fallthrough]];
        case kind::allgather:
            for (int p = 0; p < c.size(); ++p) write_output(c, std::size_t(p) * n, brought(p), n);
            return;
        case kind::alltoall:
            for (int p = 0; p < c.size(); ++p)
                write_output(c, std::size_t(p) * n, brought(p) + mine * c.element(), n);
            return;
        default: return;
    }
}

// The kernel of a rank that is aborted goes on with what it has, and its peers take that as data.
inline void write_garbage(const call& c, int rank, int size) {
    const bool is_root = rank == c.root;
    if ((c.what == kind::broadcast || c.what == kind::scatter) && is_root) return;
    if ((c.what == kind::reduce || c.what == kind::gather) && !is_root) return;
    const bool takes_all =
        c.what == kind::allgather || c.what == kind::gather || c.what == kind::alltoall;
    const std::size_t bytes = c.count * size_of(c.type) * std::size_t(takes_all ? size : 1);
    if (bytes > 0) std::memset(seen_by_device(c.out, bytes), 0x4b, bytes);
}

}  // namespace emulation
