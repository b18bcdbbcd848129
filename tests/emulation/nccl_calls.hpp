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

struct round {
    std::vector<call> calls;
    std::vector<bool> arrived;
    bool done = false;
    bool given_up = false;  // a rank was aborted in it

    explicit round(int size) : calls(std::size_t(size)), arrived(std::size_t(size)) {}
};

struct buffers {
    const round& all;
    std::size_t element;

    std::byte* in(int rank, std::size_t first, std::size_t count) const {
        return at(all.calls[std::size_t(rank)].in, first, count);
    }
    std::byte* out(int rank, std::size_t first, std::size_t count) const {
        return at(all.calls[std::size_t(rank)].out, first, count);
    }

private:
    std::byte* at(const void* address, std::size_t first, std::size_t count) const {
        if (count == 0) return nullptr;
        return emulation::seen_by_device(static_cast<const std::byte*>(address) + first * element,
                                         count * element);
    }
};

inline void move_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

inline std::vector<std::byte> reduce_all(const round& r, const buffers& b, std::size_t count) {
    std::vector<const std::byte*> inputs;
    std::vector<double> scalars;
    for (std::size_t rank = 0; rank < r.calls.size(); ++rank) {
        inputs.push_back(b.in(int(rank), 0, count));
        scalars.push_back(r.calls[rank].scalar);
    }
    const call& c = r.calls.front();
    return emulation::with_type(c.type, [&](auto zero) {
        return emulation::reduced<decltype(zero)>(c.op, inputs, scalars, count);
    });
}

// Moves the data once all ranks are here.
inline void perform(const round& r) {
    const call& c = r.calls.front();
    const int size = int(r.calls.size());
    const std::size_t n = c.count, element = emulation::size_of(c.type), bytes = n * element;
    const buffers b{r, element};
    const std::size_t whole = n * std::size_t(size);
    switch (c.what) {
        case kind::allreduce: {
            const auto result = reduce_all(r, b, n);
            for (int p = 0; p < size; ++p) move_bytes(b.out(p, 0, n), result.data(), bytes);
            return;
        }
        case kind::reduce:
            return move_bytes(b.out(c.root, 0, n), reduce_all(r, b, n).data(), bytes);
        case kind::reduce_scatter: {
            const auto result = reduce_all(r, b, whole);
            for (int p = 0; p < size; ++p)
                move_bytes(b.out(p, 0, n), result.data() + std::size_t(p) * bytes, bytes);
            return;
        }
        case kind::broadcast:
            for (int p = 0; p < size; ++p) move_bytes(b.out(p, 0, n), b.in(c.root, 0, n), bytes);
            return;
        case kind::allgather:
            for (int p = 0; p < size; ++p)
                for (int q = 0; q < size; ++q)
                    move_bytes(b.out(p, std::size_t(q) * n, n), b.in(q, 0, n), bytes);
            return;
        case kind::gather:
            for (int q = 0; q < size; ++q)
                move_bytes(b.out(c.root, std::size_t(q) * n, n), b.in(q, 0, n), bytes);
            return;
        case kind::scatter:
            for (int q = 0; q < size; ++q)
                move_bytes(b.out(q, 0, n), b.in(c.root, std::size_t(q) * n, n), bytes);
            return;
        case kind::alltoall:
            for (int p = 0; p < size; ++p)
                for (int q = 0; q < size; ++q)
                    move_bytes(b.out(p, std::size_t(q) * n, n), b.in(q, std::size_t(p) * n, n),
                               bytes);
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

inline bool same_call(const call& a, const call& b) {
    return std::tie(a.what, a.count, a.type, a.op, a.root) ==
           std::tie(b.what, b.count, b.type, b.op, b.root);
}

}  // namespace emulation
