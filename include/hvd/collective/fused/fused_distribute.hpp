// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../call/calls_base.hpp"
#include "fused_call.hpp"

namespace hvd::inline v0::detail {

// Alltoall and scatter of many tensors as one message from rank to rank. In a scatter only the root
// sends. Each tensor is split as the call on it alone does.
struct fused_distribute_call : fused_call {
    lent_sizes counts;  // the bytes of the messages by rank

    // `lender` has the memory for counts; a queued call has none.
    fused_distribute_call(fused_memory& m, workspace* lender, collective kind, root r, int rank,
                          int size, const options& o)
        : fused_call(kind, o.name, m),
          counts(lender),
          sends_(kind == collective::alltoall || rank == r.rank),
          size_(size) {
        if (kind == collective::scatter) check_root(r.rank, size);
        if (sends_) check_tensors(memory.tensors, "fuse()");
        if (kind == collective::alltoall) check_rows();
        describe_list();
        op.provide = [](void* self, slice<const std::size_t> sizes) {
            auto& that = static_cast<fused_distribute_call&>(*static_cast<fused_call*>(self));
            const bool one_sends = that.op.entry.kind == collective::scatter;
            return that.fused_call::provide(one_sends ? 1 : sizes.size(), sizes);
        };
        op.pack = [](void* self, operation&) {
            static_cast<fused_distribute_call&>(*static_cast<fused_call*>(self)).pack_all();
        };
        if (sends_ && !op.entry.refused) lay_out();
    }

    static constexpr bool receives() { return true; }

protected:
    // An input may be its output: alltoall's as a whole, that of a scatter by the slice of this
    // rank. They overlap in no other way.
    void check_places(int rank) {
        for (std::size_t t = 0; sends_ && !op.entry.refused && t < memory.tensors.size(); ++t) {
            const tensor_ref &in = memory.tensors[t], &out = memory.outputs[t];
            const tensor_ref own = op.entry.kind == collective::scatter ? part_of(in, rank) : in;
            if (in.dense && overlap(in, out) &&
                (own.data != out.data || own.bytes() != out.bytes()))
                refuse(text("hvd: ", op.entry.label(), ": tensor ", t, " of fuse(), of ",
                            in.bytes(), " bytes, and of into(), of ", out.bytes(),
                            " bytes, overlap in part"));
        }
    }

private:
    static std::size_t rows_of(const tensor_ref& t) { return t.dimensions == 0 ? 1 : t.extents[0]; }

    static bool overlap(const tensor_ref& a, const tensor_ref& b) {
        const auto begin = reinterpret_cast<std::uintptr_t>(a.data),
                   other = reinterpret_cast<std::uintptr_t>(b.data);
        return begin < other + b.bytes() && other < begin + a.bytes();
    }

    // Returns the rows of a tensor that rank r gets. The first ranks get one more.
    tensor_ref part_of(tensor_ref t, int r) const {
        const std::size_t rows = rows_of(t), first = even_part(rows, r, size_),
                          count = even_part(rows, r + 1, size_) - first;
        t.count = count == 0 ? 0 : t.count / rows * count;
        if (t.dimensions == 0) return t;
        t.extents[0] = count;
        if (t.count > 0) t.data += std::ptrdiff_t(first) * t.steps[0];
        return t;
    }

    // Rows that do not divide are refused, as in an alltoall of one tensor.
    void check_rows() {
        for (std::size_t t = 0; t < memory.tensors.size(); ++t)
            if (const std::size_t rows = rows_of(memory.tensors[t]); rows % std::size_t(size_) != 0)
                refuse(text("hvd: ", op.entry.label(), ": the ", rows, " rows of tensor ", t,
                            " can't be split equally among ", size_, " ranks"));
    }

    // Says what the ranks have in common. Only the element types are in a scatter, whose tensors
    // are the root's. The text is printed where lists differ.
    void describe_list() {
        const auto& tensors = memory.tensors;
        if (op.entry.kind == collective::alltoall) {
            op.entry.content = row_content(tensors);
        } else {
            hash h;
            h.add(tensors.size());
            for (const tensor_ref& t : tensors) h.add(std::uint64_t(t.id)).add(t.type);
            op.entry.content = h.value();
        }
        if (!op.entry.refused) say_list();
    }

    void say_list() {
        auto& said = op.entry.text;
        store_parts(said, {"tensors ", memory.tensors.size(), " of"});
        std::size_t end = std::strlen(said);
        for (const tensor_ref& t : memory.tensors) {
            if (end + 1 + t.type.size() >= sizeof said) break;
            said[end++] = ' ';
            t.type.copy(said + end, t.type.size());
            end += t.type.size();
        }
        said[end] = 0;
    }

    void lay_out() {
        counts.assign(std::size_t(size_), head());
        std::size_t bytes = 0;
        for (int r = 0; r < size_; ++r) {
            std::size_t& count = counts[std::size_t(r)];
            for (const tensor_ref& t : memory.tensors) count += part_of(t, r).bytes();
            bytes += count;
        }
        make_room(memory.input, bytes);
        op.entry.count = bytes;
        op.counts = counts;
        op.in = memory.input.data();
    }

    // A rank that sends nothing packs, too: only then what comes is unpacked.
    void pack_all() {
        std::byte* at = memory.input.data();
        for (int r = 0; sends_ && r < size_; ++r)
            at = pack_message(at, [&](const tensor_ref& t) { return part_of(t, r); });
    }

    const bool sends_;
    const int size_;
};

// The same into the caller's tensors, which `memory` has, too.
struct fused_distribute_into_call : fused_distribute_call {
    fused_distribute_into_call(fused_memory& m, workspace* lender, collective kind, root r,
                               int rank, int size, const options& o)
        : fused_distribute_call(m, lender, kind, r, rank, size, o) {
        set_outputs(kind == collective::scatter ? "scatter" : "send", rank);
        check_places(rank);
    }
};

// An input and its output are lists, both.
template <class In, class View>
constexpr bool are_fused = is_fused<std::remove_cvref_t<In>> && is_fused<View>;

// The calls themselves, as the members of a communicator make them.

template <class Comm, class List, class Results>
void run_fused_distribute(Comm& comm, collective kind, const List& list, Results& results, root r,
                          const options& o) {
    session& own = access::session_of(comm);
    const auto held = access::hold(comm, kind);
    auto call = prepare(own, kind, o, [&] {
        make_results(results, list);
        fused_memory& memory = own.work().fused;
        list_tensors(list, memory.tensors);
        return filled_fused<Results, fused_distribute_call>(results, memory, &own.work(), kind, r,
                                                            own.rank(), own.size(), o);
    });
    run_call(comm, call, o);
}

template <class Comm, class List, class Outs>
void run_fused_distribute_into(Comm& comm, collective kind, const List& list, const Outs& outs,
                               root r, const options& o) {
    session& own = access::session_of(comm);
    run_made(comm, kind, o, [&] {
        fused_memory& memory = own.work().fused;
        list_tensors(list, memory.tensors);
        list_tensors(outs, memory.outputs);
        return fused_distribute_into_call(memory, &own.work(), kind, r, own.rank(), own.size(), o);
    });
}

template <class Results, class Comm, class List>
auto start_fused_distribute(Comm& comm, collective kind, const List& list, root r,
                            const options& o) {
    const session& own = access::session_of(comm);
    return start_call_for<Results>(comm, kind, o, [&](Results& results) {
        make_results(results, list);
        return kept_fused<Results, fused_distribute_call>(memory_for(list), results, nullptr, kind,
                                                          r, own.rank(), own.size(), o);
    });
}

template <class Comm, class List, class Outs>
request start_fused_distribute_into(Comm& comm, collective kind, const List& list, const Outs& outs,
                                    root r, const options& o) {
    const session& own = access::session_of(comm);
    return start_call(comm, kind, o, [&] {
        return with_memory<fused_distribute_into_call>(memory_for(list, outs), nullptr, kind, r,
                                                       own.rank(), own.size(), o);
    });
}

}  // namespace hvd::inline v0::detail
