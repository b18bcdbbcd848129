// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "operation.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Every collective, once, over any transport: enter, exchange and combine are all that it has.

template <class Transport>
task enter(Transport& t, operation& op) {
    co_await t.enter(op.entry);
    check_records(t.rank(), t.size(), [&t](int r) -> const record& { return t.record_of(r); });
    if (op.pack != nullptr && !op.only_agree) op.pack(op.self, op);
}

// After code that may fail on one rank alone: all learn of it, in the order of calls.
template <class Transport>
task settle(Transport& t, const operation& op, std::exception_ptr failure) {
    record outcome;
    outcome.kind = collective::agree;
    store(outcome.name, collective_names[std::size_t(op.entry.kind)]);
    if (failure) {
        outcome.refused = true;
        try {
            std::rethrow_exception(failure);
        } catch (const std::exception& e) {
            store(outcome.text, e.what());
        } catch (...) {
            store(outcome.text, "unknown exception");
        }
    }
    co_await t.enter(outcome);
    if (failure) std::rethrow_exception(failure);
    check_records(t.rank(), t.size(), [&t](int r) -> const record& { return t.record_of(r); });
}

inline void copy_block(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// Each rank reduces its part of a group, to `out`.
template <class Transport>
task reduce_part(Transport& t, workspace& w, const operation& op, const reduction_group& g, std::byte* out) {
    for (int p = 0; p < t.size(); ++p) w.send[std::size_t(p)] = g.part(op.in, p, t.size());
    const reduction job{g.function, g.op, g.element_bytes, g.count_of(t.rank(), t.size()), out,
                        op.entry.prescale, op.entry.postscale};
    co_await t.combine(w.send.data(), job);
}

template <class Transport>
task allreduce(Transport& t, workspace& w, operation& op) {
    co_await enter(t, op);
    for (const reduction_group& g : op.groups)
        co_await reduce_part(t, w, op, g, g.part(op.out, t.rank(), t.size()).data);
    for (const reduction_group& g : op.groups) {
        if (t.size() == 1) break;
        const block mine = g.part(op.out, t.rank(), t.size());
        for (int p = 0; p < t.size(); ++p) {
            w.send[std::size_t(p)] = mine;
            w.receive[std::size_t(p)] = g.part(op.out, p, t.size());
        }
        co_await t.exchange(w.send.data(), w.receive.data());
    }
    if (op.fallible) co_await settle(t, op, t.take_failure());
}

template <class Transport>
task reduce(Transport& t, workspace& w, operation& op) {
    co_await enter(t, op);
    const int root = op.entry.root;
    for (const reduction_group& g : op.groups) {
        const std::size_t mine = g.part(op.in, t.rank(), t.size()).bytes;
        if (t.rank() != root) w.part.resize(mine);
        std::byte* const out = t.rank() == root ? g.part(op.out, root, t.size()).data : w.part.data();
        co_await reduce_part(t, w, op, g, out);
        w.clear_blocks();
        if (t.rank() != root) w.send[std::size_t(root)] = {out, mine};
        for (int p = 0; t.rank() == root && p < t.size(); ++p)
            if (p != root) w.receive[std::size_t(p)] = g.part(op.out, p, t.size());
        co_await t.exchange(w.send.data(), w.receive.data());
    }
    if (op.fallible) co_await settle(t, op, t.take_failure());
}

template <class Transport>
task reduce_scatter(Transport& t, workspace& w, operation& op) {
    co_await enter(t, op);
    std::byte* out = op.out;
    for (const reduction_group& g : op.groups) {
        co_await reduce_part(t, w, op, g, out);
        out += aligned(g.count_of(t.rank(), t.size()) * g.element_bytes);
    }
    if (op.fallible) co_await settle(t, op, t.take_failure());
}

template <class Transport>
task broadcast(Transport& t, workspace& w, operation& op) {
    co_await enter(t, op);
    const std::size_t root = std::size_t(op.entry.root);
    w.clear_blocks();
    const block whole{op.out, std::size_t(op.entry.count) * op.element_bytes};
    if (t.rank() == op.entry.root) {
        for (block& b : w.send) b = whole;
        w.send[root] = {};
        copy_block(op.out, op.in, whole.bytes);
    } else {
        w.receive[root] = whole;
    }
    co_await t.exchange(w.send.data(), w.receive.data());
}

// w.counts is complete: memory for the result, and every rank learns whether all have it.
template <class Transport>
task provide(Transport& t, workspace& w, operation& op) {
    std::exception_ptr failure;
    try {
        if (op.provide != nullptr) op.out = op.provide(op.self, w.counts);
    } catch (...) {
        failure = std::current_exception();
    }
    co_await settle(t, op, failure);
}

// receive[p] gets w.counts[p] elements, one rank's after another's.
inline void lay_out_received(workspace& w, operation& op) {
    std::byte* at = op.out;
    for (std::size_t p = 0; p < w.counts.size(); ++p) {
        w.receive[p] = {at, w.counts[p] * op.element_bytes};
        at += w.receive[p].bytes;
    }
}

template <class Transport>
task allgather(Transport& t, workspace& w, operation& op) {
    co_await enter(t, op);
    for (int p = 0; p < t.size(); ++p) w.counts[std::size_t(p)] = t.record_of(p).count;
    co_await provide(t, w, op);
    lay_out_received(w, op);
    const std::size_t me = std::size_t(t.rank());
    copy_block(w.receive[me].data, op.in, w.receive[me].bytes);
    for (block& b : w.send) b = {const_cast<std::byte*>(op.in), w.receive[me].bytes};
    co_await t.exchange(w.send.data(), w.receive.data());
}

template <class Transport>
task gather(Transport& t, workspace& w, operation& op) {
    co_await enter(t, op);
    for (int p = 0; p < t.size(); ++p) w.counts[std::size_t(p)] = t.record_of(p).count;
    co_await provide(t, w, op);
    const std::size_t root = std::size_t(op.entry.root);
    const std::size_t mine = std::size_t(op.entry.count) * op.element_bytes;
    w.clear_blocks();
    if (t.rank() == op.entry.root) {
        lay_out_received(w, op);
        copy_block(w.receive[root].data, op.in, mine);
    } else {
        w.send[root] = {const_cast<std::byte*>(op.in), mine};
    }
    co_await t.exchange(w.send.data(), w.receive.data());
}

// Every rank tells each peer how many elements it has for it; afterwards w.counts is what comes.
template <class Transport>
task exchange_counts(Transport& t, workspace& w, const operation& op) {
    std::fill(w.counts.begin(), w.counts.end(), std::size_t(0));
    w.clear_blocks();
    for (int p = 0; p < t.size(); ++p) {
        const std::size_t i = std::size_t(p);
        const bool from_peer = op.entry.kind == collective::alltoall || p == op.entry.root;
        if (p == t.rank()) {
            if (!op.send_counts.empty()) w.counts[i] = op.send_counts[i];
            continue;
        }
        if (!op.send_counts.empty())
            w.send[i] = {reinterpret_cast<std::byte*>(const_cast<std::size_t*>(&op.send_counts[i])), sizeof(std::size_t)};
        if (from_peer) w.receive[i] = {reinterpret_cast<std::byte*>(&w.counts[i]), sizeof(std::size_t)};
    }
    co_await t.exchange(w.send.data(), w.receive.data());
}

// alltoall, and scatter, in which only the root has something to send.
template <class Transport>
task distribute(Transport& t, workspace& w, operation& op) {
    co_await enter(t, op);
    co_await exchange_counts(t, w, op);
    co_await provide(t, w, op);
    w.clear_blocks();
    lay_out_received(w, op);
    const std::byte* at = op.in;
    for (std::size_t p = 0; p < op.send_counts.size(); ++p) {
        w.send[p] = {const_cast<std::byte*>(at), op.send_counts[p] * op.element_bytes};
        at += w.send[p].bytes;
    }
    const std::size_t me = std::size_t(t.rank());
    copy_block(w.receive[me].data, w.send[me].data, w.send[me].bytes);
    co_await t.exchange(w.send.data(), w.receive.data());
}

template <class Transport>
task barrier(Transport& t, workspace&, operation& op) {
    co_await enter(t, op);
}

template <class Transport>
task start_collective(Transport& t, workspace& w, operation& op) {
    switch (op.entry.refused || op.only_agree ? collective::barrier : op.entry.kind) {
        case collective::allreduce: return allreduce(t, w, op);
        case collective::reduce: return reduce(t, w, op);
        case collective::reduce_scatter: return reduce_scatter(t, w, op);
        case collective::broadcast: return broadcast(t, w, op);
        case collective::allgather: return allgather(t, w, op);
        case collective::gather: return gather(t, w, op);
        case collective::scatter:
        case collective::alltoall: return distribute(t, w, op);
        case collective::barrier:
        case collective::agree: break;
    }
    return barrier(t, w, op);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
