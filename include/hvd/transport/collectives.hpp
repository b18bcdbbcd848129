// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../kernel/copy.hpp"
#include "../protocol/agreement.hpp"
#include "transport.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Every collective is written here once, over any transport. A collective is a script: asked for
// its step number `step`, it begins that step on the transport, or returns false if it is over.
// Step 0 comes before: all ranks have begun the call, and their headers agree.

inline void copy_block(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes == 0 || to == from) return;
    if (to < from + bytes && from < to + bytes) std::memmove(to, from, bytes);
    else copy_bytes(to, from, bytes);
}

// Code that may fail on one rank alone has run: all ranks tell each other the outcome. This is
// run_on_all() in two steps, since a transport does not wait.
inline bool settle(transport& t, workspace& w, const operation& op) {
    w.outcome = agreement_header(name_of(op.entry.kind));
    if (w.failure) w.outcome.refuse(what_of(w.failure));
    t.exchange_headers(w.outcome);
    return true;
}

inline void check_settled(transport& t, workspace& w) {
    exchange_after(std::exchange(w.failure, nullptr),
                   [&] { check_headers(t.rank(), {t.headers, std::size_t(t.size())}); });
}

inline bool settle_reduction(transport& t, workspace& w, const operation& op, std::size_t step) {
    if (!op.fallible) {
        // The ranks do not agree on failures that nobody expects, such as an update without memory.
        if (const std::exception_ptr failure = t.take_failure()) {
            t.lost = true;
            std::rethrow_exception(failure);
        }
        return false;
    }
    if (step == 1) {
        check_settled(t, w);
        return false;
    }
    w.failure = t.take_failure();
    return settle(t, w, op);
}

// Each rank reduces its slice of a group, to `out`.
inline void reduce_slice(transport& t, workspace& w, const operation& op, const reduction_group& g,
                         std::byte* out) {
    for (int p = 0; p < t.size(); ++p) w.send[std::size_t(p)] = g.slice_of(op.in, p, t.size());
    t.reduce_scatter(w.send.data(), op.reduction_of(g, g.count_of(t.rank(), t.size()), out));
}

inline bool allreduce(transport& t, workspace& w, operation& op, std::size_t step) {
    const std::size_t moves = op.groups.size() > 0 ? 1 : 0;
    if (step > moves) return settle_reduction(t, w, op, step - moves - 1);
    t.allreduce(op);
    return true;
}

// Each rank reduces its slice of the one group; then the root gathers the slices.
inline bool reduce(transport& t, workspace& w, operation& op, std::size_t step) {
    const reduction_group& g = op.groups.front();
    const int root = op.entry.root;
    const std::size_t mine = g.slice_of(op.in, t.rank(), t.size()).bytes;
    if (step == 1) {
        if (t.rank() != root) t.guarded([&] { w.part.resize(mine); });
        reduce_slice(t, w, op, g,
                     t.rank() == root ? g.slice_of(op.out, root, t.size()).data : w.part.data());
        return true;
    }
    if (step > 2) return settle_reduction(t, w, op, step - 3);
    w.clear_blocks();
    if (t.rank() != root) w.send[std::size_t(root)] = {w.part.data(), mine};
    for (int p = 0; t.rank() == root && p < t.size(); ++p)
        if (p != root) w.receive[std::size_t(p)] = g.slice_of(op.out, p, t.size());
    t.alltoallv(w.send.data(), w.receive.data());
    return true;
}

inline bool reduce_scatter(transport& t, workspace& w, operation& op, std::size_t step) {
    if (step > op.groups.size()) return settle_reduction(t, w, op, step - op.groups.size() - 1);
    std::byte* out = op.out;
    for (const reduction_group& g : op.groups.first(step - 1))
        out += aligned(g.count_of(t.rank(), t.size()) * g.element_bytes);
    reduce_slice(t, w, op, op.groups[step - 1], out);
    return true;
}

inline bool broadcast(transport& t, workspace&, operation& op, std::size_t step) {
    if (step > 1) return false;
    const block whole{op.out, std::size_t(op.entry.count) * op.element_bytes};
    if (t.rank() == op.entry.root) copy_block(op.out, op.in, whole.bytes);
    t.broadcast(whole, op.entry.root);
    return true;
}

// Makes memory for the result, for which w.counts is complete. Every rank learns whether all ranks
// have it.
inline bool provide(transport& t, workspace& w, operation& op) {
    try {
        if (op.provide != nullptr) op.out = op.provide(op.self, w.counts);
    } catch (...) {
        w.failure = std::current_exception();
    }
    return settle(t, w, op);
}

// Gives receive[p] room for w.counts[p] elements of the result, one rank's after another's.
inline void lay_out_received(workspace& w, const operation& op) {
    std::byte* at = op.out;
    for (std::size_t p = 0; p < w.counts.size(); ++p) {
        w.receive[p] = {at, w.counts[p] * op.element_bytes};
        at += w.receive[p].bytes;
    }
}

inline bool take(transport& t, workspace& w, operation& op, std::size_t step) {
    if (step == 1) {
        check_settled(t, w);
        return false;
    }
    try {
        op.take(op.self);
    } catch (...) {
        w.failure = std::current_exception();
    }
    return settle(t, w, op);
}

// Allgather and gather. The headers have brought the counts of all ranks.
inline bool gather_to(transport& t, workspace& w, operation& op, std::size_t step) {
    const bool everywhere = op.entry.kind == collective::allgather;
    if (step == 1) {
        for (int p = 0; p < t.size(); ++p) w.counts[std::size_t(p)] = t.headers[p]->count;
        return provide(t, w, op);
    }
    if (step > 2) return op.take != nullptr && take(t, w, op, step - 3);
    check_settled(t, w);
    const std::size_t me = std::size_t(t.rank());
    const block mine{const_cast<std::byte*>(op.in), std::size_t(op.entry.count) * op.element_bytes};
    w.clear_blocks();
    if (everywhere || t.rank() == op.entry.root) {
        lay_out_received(w, op);
        copy_block(w.receive[me].data, mine.data, mine.bytes);
    }
    if (everywhere) {
        t.allgather(mine, w.receive.data());
        return true;
    }
    if (t.rank() != op.entry.root) w.send[std::size_t(op.entry.root)] = mine;
    t.alltoallv(w.send.data(), w.receive.data());
    return true;
}

// Every rank tells each peer how many elements it has for it. Afterwards w.counts has the numbers
// of elements that come.
inline bool exchange_counts(transport& t, workspace& w, const operation& op) {
    w.clear_blocks();
    for (int p = 0; p < t.size(); ++p) {
        const std::size_t i = std::size_t(p);
        w.counts[i] = p == t.rank() && !op.counts.empty() ? op.counts[i] : 0;
        if (p == t.rank()) continue;
        if (!op.counts.empty())
            w.send[i] = {reinterpret_cast<std::byte*>(const_cast<std::size_t*>(&op.counts[i])),
                         sizeof(std::size_t)};
        if (op.entry.kind == collective::alltoall || p == op.entry.root)
            w.receive[i] = {reinterpret_cast<std::byte*>(&w.counts[i]), sizeof(std::size_t)};
    }
    t.alltoallv(w.send.data(), w.receive.data());
    return true;
}

// Alltoall, and scatter, in which only the root sends.
inline bool distribute(transport& t, workspace& w, operation& op, std::size_t step) {
    if (step == 1) return exchange_counts(t, w, op);
    if (step == 2) return provide(t, w, op);
    if (step > 3) return false;
    check_settled(t, w);
    w.clear_blocks();
    lay_out_received(w, op);
    const std::byte* at = op.in;
    for (std::size_t p = 0; p < op.counts.size(); ++p) {
        w.send[p] = {const_cast<std::byte*>(at), op.counts[p] * op.element_bytes};
        at += w.send[p].bytes;
    }
    const std::size_t me = std::size_t(t.rank());
    copy_block(w.receive[me].data, w.send[me].data, w.send[me].bytes);
    t.alltoallv(w.send.data(), w.receive.data());
    return true;
}

// Begins step `step` of a collective, counted from 1.
inline bool begin_step(transport& t, workspace& w, operation& op, std::size_t step) {
    switch (op.entry.kind) {
        case collective::allreduce: return allreduce(t, w, op, step);
        case collective::reduce: return reduce(t, w, op, step);
        case collective::reduce_scatter: return reduce_scatter(t, w, op, step);
        case collective::broadcast: return broadcast(t, w, op, step);
        case collective::allgather:
        case collective::gather: return gather_to(t, w, op, step);
        case collective::scatter:
        case collective::alltoall: return distribute(t, w, op, step);
        case collective::barrier:
        case collective::agree: break;  // the exchange of headers is all
    }
    return false;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
