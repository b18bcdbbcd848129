// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/nccl_api.hpp"
#include "../call.hpp"

namespace hvd::inline v0::detail {

// The calls of one group, until NCCL has taken all of them. It keeps the first failure and the
// function that failed.
class nccl_calls {
public:
    void add(ncclResult_t code, const char* api) {
        if (failed() || code == ncclSuccess || code == ncclInProgress) return;
        code_ = code;
        api_ = api;
    }
    bool failed() const { return code_ != ncclSuccess; }
    ncclResult_t code() const { return code_; }
    const char* api() const { return api_; }

private:
    ncclResult_t code_ = ncclSuccess;
    const char* api_ = "";
};

struct nccl_place {
    ncclComm_t comm;
    cudaStream_t stream;
    int rank, size;
    std::byte* scratch;
    nccl_library library;
};

// True for a call that is several operations to NCCL, one or two for each rank.
inline bool goes_in_parts(const collective_call& c, const nccl_library& library) {
    const bool is_rooted_movement = c.entry.kind == collective::alltoall ||
                                    c.entry.kind == collective::gather ||
                                    c.entry.kind == collective::scatter;
    return !c.counts.empty() || (is_rooted_movement && !library.has(nccl_since::rooted_movements));
}

// Elements that NCCL does not know are moved as bytes.
struct nccl_elements {
    ncclDataType_t type;
    std::size_t unit;

    nccl_elements(dtype id, std::size_t bytes)
        : type(has_nccl_type(id) ? nccl_type(id) : ncclUint8),
          unit(has_nccl_type(id) ? 1 : bytes) {}
    explicit nccl_elements(const collective_call& c) : nccl_elements(c.entry.id, c.element_bytes) {}
};

// A message from or to one other rank.
struct device_message {
    std::byte* data;
    std::size_t count, element_bytes;
    dtype id;
    int peer;
    bool sends;

    bool overlaps(const device_message& other) const {
        return data < other.data + other.count * other.element_bytes &&
               other.data < data + count * element_bytes;
    }
};

// A message without elements is none, which both of its ranks know.
inline void issue(nccl_calls& made, const device_message& m, const nccl_place& at) {
    const nccl_elements e(m.id, m.element_bytes);
    const std::size_t n = m.count * e.unit;
    if (n == 0) return;
    if (m.sends) made.add(ncclSend(m.data, n, e.type, m.peer, at.comm, at.stream), "ncclSend");
    else made.add(ncclRecv(m.data, n, e.type, m.peer, at.comm, at.stream), "ncclRecv");
}

// Issues a call whose parts have different sizes, or which the library does not have. NCCL takes
// messages or reductions in a group for it. A part without elements has no message, which both of
// its ranks know.
inline void issue_parts(nccl_calls& made, const collective_call& c, ncclRedOp_t op,
                        const nccl_place& at) {
    const nccl_elements e(c);
    const std::size_t width = c.element_bytes;
    const auto send = [&](const std::byte* from, std::size_t n, int peer) {
        if (n > 0)
            made.add(ncclSend(from, n * e.unit, e.type, peer, at.comm, at.stream), "ncclSend");
    };
    const auto receive = [&](std::byte* to, std::size_t n, int peer) {
        if (n > 0) made.add(ncclRecv(to, n * e.unit, e.type, peer, at.comm, at.stream), "ncclRecv");
    };
    const bool is_root = c.entry.root == at.rank;
    const std::byte* in = c.in;
    std::byte* out = c.out;
    for (int p = 0; p < at.size; ++p) {
        const std::size_t n = c.count_of(p);
        switch (c.entry.kind) {
            case collective::reduce_scatter:
                if (n > 0)
                    made.add(ncclReduce(in, out, n, e.type, op, p, at.comm, at.stream),
                             "ncclReduce");
                in += n * width;
                break;
            case collective::allgather:
                if (n > 0)
                    made.add(ncclBroadcast(c.in, out, n * e.unit, e.type, p, at.comm, at.stream),
                             "ncclBroadcast");
                out += n * width;
                break;
            case collective::gather:
                if (is_root) receive(out, n, p);
                out += n * width;
                break;
            case collective::scatter:
                if (is_root) send(in, n, p);
                in += n * width;
                break;
            default:  // alltoall
                send(in, n, p);
                receive(out, c.received_from(p), p);
                in += n * width;
                out += c.received_from(p) * width;
        }
    }
    if (c.entry.kind == collective::gather) send(c.in, c.count_of(at.rank), c.entry.root);
    if (c.entry.kind == collective::scatter) receive(c.out, c.count_of(at.rank), c.entry.root);
}

// Returns the number of operations that a call is to NCCL. It is the same on all ranks.
inline std::size_t operations_of(const collective_call& c, int size) {
    const bool is_for_each_rank = !c.counts.empty() || c.entry.kind == collective::alltoall ||
                                  c.entry.kind == collective::gather ||
                                  c.entry.kind == collective::scatter;
    return is_for_each_rank ? std::size_t(size) : 1;
}

// Returns the end of the calls that go into one group with the first. NCCL takes 2048 operations in
// a group. A call that is messages or reductions for each rank is as many, and messages are sent
// and received.
inline std::size_t end_of_group(std::span<const collective_call> calls, std::size_t first,
                                int size) {
    constexpr std::size_t most = tuning::nccl_operations;
    std::size_t end = first, operations = 0;
    do operations += operations_of(calls[end], size);
    while (++end < calls.size() && operations + operations_of(calls[end], size) <= most);
    return end;
}

inline void issue(nccl_calls& made, const collective_call& c, ncclRedOp_t op,
                  const nccl_place& at) {
    if (goes_in_parts(c, at.library)) return issue_parts(made, c, op, at);
    const nccl_elements e(c);
    const std::size_t n = c.entry.count * e.unit;
    switch (c.entry.kind) {
        case collective::allreduce:
            return made.add(ncclAllReduce(c.in, c.out, n, e.type, op, at.comm, at.stream),
                            "ncclAllReduce");
        case collective::reduce:
            return made.add(
                ncclReduce(c.in, c.out, n, e.type, op, c.entry.root, at.comm, at.stream),
                "ncclReduce");
        case collective::reduce_scatter:
            return made.add(ncclReduceScatter(c.in, c.out, n, e.type, op, at.comm, at.stream),
                            "ncclReduceScatter");
        case collective::broadcast:
            return made.add(ncclBroadcast(c.in, c.out, n, e.type, c.entry.root, at.comm, at.stream),
                            "ncclBroadcast");
        case collective::allgather:
            return made.add(ncclAllGather(c.in, c.out, n, e.type, at.comm, at.stream),
                            "ncclAllGather");
        case collective::gather:
            return made.add(ncclGather(c.in, c.out, n, e.type, c.entry.root, at.comm, at.stream),
                            "ncclGather");
        case collective::scatter:
            return made.add(ncclScatter(c.in, c.out, n, e.type, c.entry.root, at.comm, at.stream),
                            "ncclScatter");
        case collective::alltoall:
            return made.add(ncclAlltoAll(c.in, c.out, n, e.type, at.comm, at.stream),
                            "ncclAlltoAll");
        default:  // NCCL has no barrier, but no reduction ends before all ranks have begun it
            return made.add(
                ncclAllReduce(at.scratch, at.scratch, 1, ncclUint8, ncclMax, at.comm, at.stream),
                "ncclAllReduce");
    }
}

}  // namespace hvd::inline v0::detail
