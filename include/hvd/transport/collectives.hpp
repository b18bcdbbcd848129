// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../kernel/copy.hpp"
#include "../protocol/agreement.hpp"
#include "../protocol/message_check.hpp"
#include "transport.hpp"

namespace hvd::inline v0::detail {

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
    exchange_after(std::exchange(w.failure, nullptr), [&] {
        if (!t.agreed) check_headers(t.rank(), t.headers, t.size());
    });
}

inline bool settle_reduction(transport& t, workspace& w, const operation& op, std::size_t step) {
    if (!op.fallible) return false;
    if (step == 1) {
        check_settled(t, w);
        return false;
    }
    if (!w.failure) w.failure = t.take_failure();
    return settle(t, w, op);
}

// Each rank reduces its slice of a group, to `out`.
inline void reduce_slice(transport& t, workspace& w, const operation& op, const reduction_group& g,
                         std::byte* out) {
    for (int p = 0; p < t.size(); ++p) w.send[std::size_t(p)] = g.slice_of(op.in, p, t.size());
    t.reduce_scatter(w.send.data(), op.reduction_of(g, g.count_of(t.rank(), t.size()), out));
}

inline bool allreduce(transport& t, workspace& w, operation& op, std::size_t step) {
    const std::size_t moves = op.group_count > 0 ? 1 : 0;
    if (step > moves) return settle_reduction(t, w, op, step - moves - 1);
    t.allreduce(op);
    return true;
}

// The tensors of all ranks have come with the headers: each rank reduces its slice, and in a reduce
// the root reduces all.
inline bool reduce_brought(transport& t, workspace& w, const operation& op, std::size_t step) {
    const bool all = op.entry.kind == collective::reduce;
    std::byte* out = op.out;
    for (std::size_t i = 0; step == 1 && i < op.group_count; ++i) {
        const reduction_group& g = op.groups[i];
        if (all) {
            if (t.rank() == op.entry.root) t.reduce_brought(op, g, 0, g.count, op.out + g.offset);
            continue;
        }
        const std::size_t mine = g.count_of(t.rank(), t.size());
        t.reduce_brought(op, g, g.begin_of(t.rank(), t.size()), mine, out);
        out += aligned(mine * g.element_bytes);
    }
    return settle_reduction(t, w, op, step - 1);
}

// Each rank reduces its slice of a group; then the root gathers the slices. Groups follow each
// other.
inline bool reduce(transport& t, workspace& w, operation& op, std::size_t step) {
    if (t.brought) return reduce_brought(t, w, op, step);
    if (step > 2 * op.group_count) return settle_reduction(t, w, op, step - 2 * op.group_count - 1);
    const reduction_group& g = op.groups[(step - 1) / 2];
    const int root = op.entry.root;
    const std::size_t mine = g.slice_of(op.in, t.rank(), t.size()).bytes;
    if (step % 2 == 1) {
        reduce_slice(t, w, op, g,
                     t.rank() == root ? g.slice_of(op.out, root, t.size()).data : w.part.data());
        return true;
    }
    w.clear_blocks();
    if (t.rank() != root) w.send[std::size_t(root)] = {w.part.data(), mine};
    for (int p = 0; t.rank() == root && p < t.size(); ++p)
        if (p != root) w.receive[std::size_t(p)] = g.slice_of(op.out, p, t.size());
    t.alltoallv(w.send.data(), w.receive.data());
    return true;
}

inline bool reduce_scatter(transport& t, workspace& w, operation& op, std::size_t step) {
    if (t.brought) return reduce_brought(t, w, op, step);
    if (step > op.group_count) return settle_reduction(t, w, op, step - op.group_count - 1);
    std::byte* out = op.out;
    for (std::size_t i = 0; i + 1 < step; ++i)
        out += aligned(op.groups[i].count_of(t.rank(), t.size()) * op.groups[i].element_bytes);
    reduce_slice(t, w, op, op.groups[step - 1], out);
    return true;
}

// ---- scan and exscan ----------------------------------------------------------------------------

// A rank that reduces has one row for each rank that contributes, one after another in w.part. The
// function of the group replaces row r by the reduction of rows 0 to r. This is the result of rank
// r in a scan, and of rank r + 1 in an exscan, to which the last rank contributes nothing. The
// steps are cold, since every program compiles them and few use them; the kernels do the work.
inline int first_with_result(const operation& op) {
    return op.entry.kind == collective::exscan ? 1 : 0;
}
inline block row_of(workspace& w, int r, std::size_t bytes) {
    return {w.part.data() + std::size_t(r) * bytes, bytes};
}

inline void reduce_rows(workspace& w, const operation& op, const reduction_group& g, int rows,
                        std::size_t bytes) {
    if (rows == 0 || bytes == 0) return;
    keep_failure(w.failure, [&] {
        g.function({g.op, nullptr, rows, 1, w.part.data(), bytes / g.element_bytes, op.prescale(g),
                    op.postscale(g)});
    });
}

// The elements of a group whose prefixes are computed together, so that the memory for the rows is
// bounded. Rank p reduces the p-th slice for all ranks.
struct scan_chunk {
    const reduction_group* group = nullptr;  // null after the last chunk
    std::size_t first = 0, count = 0;

    block slice_of(const std::byte* buffer, int p, int size) const {
        reduction_group part = *group;
        part.offset += first * part.element_bytes;
        part.count = count;
        return part.slice_of(buffer, p, size);
    }
};

// Returns chunk `index` of all groups. After the last one it subtracts the number of chunks.
[[gnu::cold]] inline scan_chunk scan_chunk_at(const operation& op, int size,
                                              std::size_t chunk_bytes, std::size_t& index) {
    for (std::size_t i = 0; i < op.group_count; ++i) {
        const reduction_group& g = op.groups[i];
        const std::size_t fit = chunk_bytes / g.element_bytes,
                          most = (fit == 0 ? 1 : fit) * std::size_t(size),
                          chunks = g.count / most + (g.count % most == 0 ? 0 : 1);
        if (index < chunks) {
            const std::size_t first = index * most, left = g.count - first;
            return {&g, first, left < most ? left : most};
        }
        index -= chunks;
    }
    return {};
}

// Each rank sends each slice of the chunk to the rank that reduces it.
[[gnu::cold]] inline void send_inputs(transport& t, workspace& w, const operation& op,
                                      const scan_chunk& c) {
    const int me = t.rank(), rows = t.size() - first_with_result(op);
    const std::size_t bytes = c.slice_of(op.in, me, t.size()).bytes;
    w.clear_blocks();
    for (int p = 0; p < t.size(); ++p) {
        if (p == me) continue;
        if (me < rows) w.send[std::size_t(p)] = c.slice_of(op.in, p, t.size());
        if (p < rows) w.receive[std::size_t(p)] = row_of(w, p, bytes);
    }
    if (me < rows)
        copy_block(row_of(w, me, bytes).data, c.slice_of(op.in, me, t.size()).data, bytes);
    t.alltoallv(w.send.data(), w.receive.data());
}

// Each rank reduces its slice for all ranks, and sends each of them its result.
[[gnu::cold]] inline void send_results(transport& t, workspace& w, const operation& op,
                                       const scan_chunk& c) {
    const int me = t.rank(), shift = first_with_result(op);
    const std::size_t bytes = c.slice_of(op.in, me, t.size()).bytes;
    reduce_rows(w, op, *c.group, t.size() - shift, bytes);
    w.clear_blocks();
    for (int p = 0; p < t.size(); ++p) {
        if (p == me) continue;
        if (p >= shift) w.send[std::size_t(p)] = row_of(w, p - shift, bytes);
        if (me >= shift) w.receive[std::size_t(p)] = c.slice_of(op.out, p, t.size());
    }
    if (me >= shift)
        copy_block(c.slice_of(op.out, me, t.size()).data, row_of(w, me - shift, bytes).data, bytes);
    t.alltoallv(w.send.data(), w.receive.data());
}

// Returns true if there are further steps. Nothing comes before rank 0 in an exscan: after the last
// step the reduction of no rows goes to its output.
[[gnu::cold]] inline bool settle_scan(transport& t, workspace& w, const operation& op,
                                      std::size_t step) {
    if (settle_reduction(t, w, op, step)) return true;
    for (std::size_t i = 0; t.rank() < first_with_result(op) && i < op.group_count; ++i) {
        const reduction_group& g = op.groups[i];
        g.function({g.op, nullptr, 0, 1, op.out + g.offset, g.count, 1, 1});
    }
    return false;
}

// A small tensor goes whole to all later ranks, and each rank reduces for itself. This is one step
// less.
[[gnu::cold]] inline bool scan_small(transport& t, workspace& w, operation& op, std::size_t step) {
    const reduction_group& g = op.groups[0];
    const std::size_t bytes = g.bytes();
    const int me = t.rank(), rows = me + 1 - first_with_result(op);
    const block mine{const_cast<std::byte*>(op.in) + g.offset, bytes};
    if (step == 1) {
        w.clear_blocks();
        for (int p = me + 1; p < t.size(); ++p) w.send[std::size_t(p)] = mine;
        for (int p = 0; p < me; ++p) w.receive[std::size_t(p)] = row_of(w, p, bytes);
        copy_block(row_of(w, me, bytes).data, mine.data, bytes);
        t.alltoallv(w.send.data(), w.receive.data());
        return true;
    }
    if (step == 2) {
        reduce_rows(w, op, g, rows, bytes);
        if (rows > 0) copy_block(op.out + g.offset, row_of(w, rows - 1, bytes).data, bytes);
    }
    return settle_scan(t, w, op, step - 2);
}

inline bool is_small_scan(const operation& op, int size, const tuning_options& tuned) {
    return op.group_count == 1 &&
           op.groups[0].bytes() <= tuned.unstable.most_by_all / std::size_t(size);
}

// Returns the bytes that the steps of a scan take of w.part.
[[gnu::cold]] inline std::size_t part_of_scan(const operation& op, int rank, int size,
                                              const tuning_options& tuned) {
    if (is_small_scan(op, size, tuned)) return op.groups[0].bytes() * std::size_t(rank + 1);
    const std::size_t rows = std::size_t(size - first_with_result(op));
    std::size_t most = 0;
    for (std::size_t i = 0;; ++i) {
        std::size_t index = i;
        const scan_chunk c = scan_chunk_at(op, size, tuned.chunk_bytes, index);
        if (c.group == nullptr) return most;
        const std::size_t bytes = c.slice_of(op.in, rank, size).bytes * rows;
        if (bytes > most) most = bytes;
    }
}

[[gnu::cold]] inline bool scan(transport& t, workspace& w, operation& op, std::size_t step) {
    if (is_small_scan(op, t.size(), t.tuned())) return scan_small(t, w, op, step);
    std::size_t index = (step - 1) / 2;
    const scan_chunk chunk = scan_chunk_at(op, t.size(), t.tuned().chunk_bytes, index);
    if (chunk.group == nullptr) return settle_scan(t, w, op, 2 * index + (step - 1) % 2);
    if (step % 2 == 1) send_inputs(t, w, op, chunk);
    else send_results(t, w, op, chunk);
    return true;
}

// ---- calls that move ----------------------------------------------------------------------------

inline bool broadcast(transport& t, workspace&, operation& op, std::size_t step) {
    if (step > 1) return false;
    const block whole{op.out, std::size_t(op.entry.count) * op.element_bytes};
    if (t.rank() == op.entry.root) copy_block(op.out, op.in, whole.bytes);
    else if (t.brought) copy_bytes(op.out, t.brought_from(op, op.entry.root).data, whole.bytes);
    if (t.brought) return false;
    t.broadcast(whole, op.entry.root);
    return true;
}

inline bool move_message(transport& t, operation& op, std::size_t step) {
    if (step > 1) return false;
    const bool sends = op.entry.is_sent();
    t.move_one({sends ? const_cast<std::byte*>(op.in) : op.out,
                std::size_t(op.entry.count) * op.element_bytes},
               op.entry.root, sends);
    return true;
}

// The two ranks of a message go on together, unless the other one makes another call.
inline void check_message(transport& t, const call_header& mine) {
    const call_header& theirs = *t.headers[mine.root];
    if (!is_message_with(t.rank(), theirs)) [[unlikely]]
        t.give_up();
    check_message(t.rank(), mine, theirs);
}

// All ranks of a call see the same headers, and go on together. But a message shows its header to
// one rank alone.
inline void check_call(transport& t) {
    if (t.late) std::rethrow_exception(std::exchange(t.late, nullptr));
    try {
        check_headers(t.rank(), t.headers, t.size());
    } catch (...) {
        for (int p = 0; p < t.size(); ++p)
            if (is_message(t.headers[p]->kind)) t.give_up();
        throw;
    }
}

// No memory has as many elements as the counts that have come from other ranks.
[[gnu::cold, noreturn]] inline void refuse_counts(const transport& t, const operation& op,
                                                  std::size_t rank, std::size_t count) {
    throw peer_error(t.rank(),
                     text("hvd: ", op.entry.label(), " on rank ", t.rank(), ": rank ", rank,
                          " says that it gives ", count, " elements, and no memory has so many"),
                     {int(rank)});
}
inline void check_counts(const transport& t, const workspace& w, const operation& op) {
    std::size_t left = op.element_bytes > 0 ? PTRDIFF_MAX / op.element_bytes : PTRDIFF_MAX;
    for (std::size_t p = 0; p < w.counts.size(); ++p) {
        if (w.counts[p] > left) [[unlikely]]
            refuse_counts(t, op, p, w.counts[p]);
        left -= w.counts[p];
    }
}

// Makes memory for the result, for which w.counts is complete. Every rank learns whether all ranks
// have it, unless they have said that with their headers.
inline bool provide(transport& t, workspace& w, operation& op) {
    try {
        check_counts(t, w, op);
        if (op.provide != nullptr) op.out = op.provide(op.self, w.counts);
    } catch (...) {
        w.failure = std::current_exception();
    }
    if (!t.all_have_room) return settle(t, w, op);
    if (w.failure) [[unlikely]]
        t.guarded([&] { std::rethrow_exception(std::exchange(w.failure, nullptr)); });
    t.skip();
    return true;
}

// Gives receive[p] room for w.counts[p] elements of the result, one rank's after another's.
inline void lay_out_received(workspace& w, const operation& op) {
    std::byte* at = op.out;
    for (std::size_t p = 0; p < w.counts.size(); ++p) {
        w.receive[p] = {at, w.counts[p] * op.element_bytes};
        at += w.receive[p].bytes;
    }
}

// Takes what has come with the headers. The ranks copy it once all have room for it.
inline void take_brought(transport& t, workspace& w, const operation& op) {
    for (int p = 0; p < t.size(); ++p) w.brought[std::size_t(p)] = t.brought_from(op, p);
}
inline bool copy_brought(transport& t, workspace& w) {
    for (int p = 0; p < t.size(); ++p) {
        const block& to = w.receive[std::size_t(p)];
        if (p != t.rank()) copy_bytes(to.data, w.brought[std::size_t(p)].data, to.bytes);
    }
    t.skip();
    return true;
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

// Makes memory for the result where ranks have left the call: this rank fails alone.
inline void provide_alone(transport& t, workspace& w, operation& op) {
    check_counts(t, w, op);
    if (op.provide != nullptr) op.out = op.provide(op.self, w.counts);
    w.clear_blocks();
    lay_out_received(w, op);
}

// The root of a gather takes what has come with the headers.
inline void gather_brought(transport& t, workspace& w, operation& op, const block& mine) {
    for (int p = 0; p < t.size(); ++p)
        w.counts[std::size_t(p)] = t.agreed ? op.entry.count : t.headers[p]->count;
    provide_alone(t, w, op);
    copy_block(w.receive[std::size_t(t.rank())].data, mine.data, mine.bytes);
    for (int p = 0; p < t.size(); ++p)
        if (const block& to = w.receive[std::size_t(p)]; p != t.rank() && t.has_brought(p))
            copy_bytes(to.data, t.brought_from(op, p).data, to.bytes);
}

// A gather that ranks have left, whose tensors were small. Those of the others come as messages,
// one after another. Before each the root tells if it has memory.
inline bool gather_apart(transport& t, workspace& w, operation& op, std::size_t step) {
    const int root = op.entry.root;
    const block mine{const_cast<std::byte*>(op.in), std::size_t(op.entry.count) * op.element_bytes};
    const bool receives = t.rank() == root, tells = step % 2 == 1;
    if (!receives && (step > 2 || t.has_brought(t.rank()))) return false;
    if (step == 1) {
        w.outcome = agreement_header(name_of(op.entry.kind));
        try {
            if (receives) gather_brought(t, w, op, mine);
        } catch (...) {
            w.failure = std::current_exception();
            w.outcome.refuse(what_of(w.failure));
        }
    }
    std::size_t left = (step - 1) / 2;
    int peer = receives ? 0 : root;
    while (receives && peer < t.size() && (peer == root || t.has_brought(peer) || left-- > 0))
        ++peer;
    if (peer == t.size()) {
        if (w.failure) std::rethrow_exception(std::exchange(w.failure, nullptr));
        return false;
    }
    w.outcome.root = peer;
    if (tells) {
        t.exchange_header(w.outcome, peer);
        return true;
    }
    if (!receives && t.headers[root]->refused)
        throw peer_error(t.rank(),
                         text("hvd: ", op.entry.label(), " on rank ", t.rank(), ": rank ", root,
                              " refused it: ", std::string_view(t.headers[root]->text)),
                         {root});
    if (w.failure) t.skip();
    else t.move_one(receives ? w.receive[std::size_t(peer)] : mine, peer, !receives);
    return true;
}

// Allgather and gather. The headers have brought the counts of all ranks.
inline bool gather_to(transport& t, workspace& w, operation& op, std::size_t step) {
    const bool everywhere = op.entry.kind == collective::allgather;
    if (t.apart) return gather_apart(t, w, op, step);
    if (step == 1) {
        for (int p = 0; p < t.size(); ++p)
            w.counts[std::size_t(p)] = t.agreed ? op.entry.count : t.headers[p]->count;
        if (t.brought) take_brought(t, w, op);
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
    if (t.brought) return copy_brought(t, w);
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

// The same, where the headers have brought the data. Then w.counts is complete at once.
inline bool read_counts(transport& t, workspace& w, const operation& op) {
    take_brought(t, w, op);
    for (std::size_t p = 0; p < w.counts.size(); ++p)
        w.counts[p] = w.brought[p].bytes / op.element_bytes;
    t.skip();
    return true;
}

// A scatter that its root has left. Each rank takes its part, which has come with the headers.
inline void scatter_apart(transport& t, workspace& w, operation& op) {
    const std::size_t root = std::size_t(op.entry.root);
    block part;
    if (t.rank() == op.entry.root) {
        std::size_t before = 0;
        for (std::size_t p = 0; p < root; ++p) before += op.counts[p];
        part = {const_cast<std::byte*>(op.in) + before * op.element_bytes,
                op.counts[root] * op.element_bytes};
    } else part = t.brought_from(op, op.entry.root);
    for (std::size_t& count : w.counts) count = 0;
    w.counts[root] = part.bytes / op.element_bytes;
    provide_alone(t, w, op);
    copy_block(w.receive[root].data, part.data, part.bytes);
}

// Alltoall, and scatter, in which only the root sends.
inline bool distribute(transport& t, workspace& w, operation& op, std::size_t step) {
    if (t.apart) {
        if (step == 1) scatter_apart(t, w, op);
        return false;
    }
    if (step == 1) return t.brought ? read_counts(t, w, op) : exchange_counts(t, w, op);
    if (step == 2) return provide(t, w, op);
    if (step > 3) return op.take != nullptr && take(t, w, op, step - 4);
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
    if (t.brought) return copy_brought(t, w);
    t.alltoallv(w.send.data(), w.receive.data());
    return true;
}

// Makes memory for the result before the counts of the others are known: for as many elements of
// each rank as this one gives. Returns false if there is none, or if the numbers differ.
inline bool provide_early(workspace& w, const operation& op) {
    if (op.provide == nullptr) return true;
    std::size_t each = std::size_t(op.entry.count);
    if (op.entry.kind == collective::alltoall) each /= w.counts.size();
    for (std::size_t p = 0; p < w.counts.size(); ++p) {
        if (!op.counts.empty() && op.counts[p] != each) return false;
        w.counts[p] = each;
    }
    try {
        op.provide(op.self, w.counts);
    } catch (...) {  // the call asks again, and tells it
        return false;
    }
    return true;
}

// Makes the memory that the steps of a collective take of w.part, and for the result where it may
// come with the headers. A rank that has none can still refuse the call.
inline void make_part(const transport& t, workspace& w, operation& op) {
    switch (op.entry.kind) {
        case collective::allgather:
        case collective::gather:
        case collective::alltoall: op.has_room = t.carries && provide_early(w, op); break;
        case collective::scatter:
            op.has_room =
                t.carries && op.room != unknown_room &&
                (t.rank() != op.entry.root || op.room == op.counts[std::size_t(t.rank())]);
            break;
        case collective::reduce:
            for (std::size_t i = 0; t.rank() != op.entry.root && i < op.group_count; ++i)
                make_room(w.part, op.groups[i].slice_of(op.in, t.rank(), t.size()).bytes);
            break;
        case collective::scan:
        case collective::exscan:
            make_room(w.part, part_of_scan(op, t.rank(), t.size(), t.tuned()));
            break;
        default: break;
    }
}

// Begins step `step` of a collective, counted from 1.
inline bool begin_step(transport& t, workspace& w, operation& op, std::size_t step) {
    switch (op.entry.kind) {
        case collective::allreduce: return allreduce(t, w, op, step);
        case collective::reduce: return reduce(t, w, op, step);
        case collective::reduce_scatter: return reduce_scatter(t, w, op, step);
        case collective::scan:
        case collective::exscan: return scan(t, w, op, step);
        case collective::broadcast: return broadcast(t, w, op, step);
        case collective::allgather:
        case collective::gather: return gather_to(t, w, op, step);
        case collective::scatter:
        case collective::alltoall: return distribute(t, w, op, step);
        case collective::send:
        case collective::recv: return move_message(t, op, step);
        case collective::barrier:
        case collective::agree: break;  // the exchange of headers is all
    }
    return false;
}

}  // namespace hvd::inline v0::detail
