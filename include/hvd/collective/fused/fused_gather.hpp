// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "fused_results.hpp"

namespace hvd::inline v0::detail {

// Returns a hash over the element types and all but the first extents, which ranks that gather have
// in common.
inline std::uint64_t row_content(const std::vector<tensor_ref>& tensors) {
    hash h;
    h.add(tensors.size());
    for (tensor_ref t : tensors) {
        t.extents[0] = 0;
        h.add(t);
    }
    return h.value();
}

// The ranks that get what is gathered: all of them, or one.
struct receivers {
    collective kind = collective::allgather;
    root one = root{0};
    int rank = 0, size = 1;

    bool has_this_rank() const { return kind == collective::allgather || one.rank == rank; }
};

// Gathers many tensors as one message per rank: their counts, then their elements. `memory` has the
// tensors.
struct fused_gather_call : call {
    fused_memory& memory;
    const bool receives;

    fused_gather_call(fused_memory& m, const options& o, const receivers& to = {})
        : memory(m), receives(to.has_this_rank()) {
        describe(to.kind, o.name);
        if (to.kind == collective::gather) check_root(to.one.rank, to.size);
        check_tensors(memory.tensors, "fuse()");
        std::size_t bytes = head();
        for (const tensor_ref& t : memory.tensors) bytes += t.bytes();
        make_room(memory.input, bytes);
        op.entry.fused = true;
        op.entry.count = bytes;
        op.entry.content = row_content(memory.tensors);
        op.in = memory.input.data();
        op.self = this;
        op.pack = [](void* self, operation&) {
            static_cast<fused_gather_call*>(self)->pack_mine();
        };
        if (!receives) return;
        op.provide = [](void* self, slice<const std::size_t> counts) {
            auto& that = *static_cast<fused_gather_call*>(self);
            that.ranks_ = counts.size();
            that.memory.output.resize(total_of(counts));
            return that.memory.output.data();
        };
    }

    // Calls f(rank, tensor, count, bytes) for all received tensors, rank after rank.
    template <class F>
    void for_each_piece(F&& f) const {
        const std::byte* at = memory.output.data();
        for (std::size_t r = 0; r < ranks_; ++r) {
            const std::byte* const counts = at;
            at += head();
            for (std::size_t t = 0; t < memory.tensors.size(); ++t) {
                std::uint64_t count;
                std::memcpy(&count, counts + t * sizeof count, sizeof count);
                f(r, t, std::size_t(count), at);
                at += std::size_t(count) * memory.tensors[t].element_bytes;
            }
        }
    }

protected:
    void check_tensors(const std::vector<tensor_ref>& tensors, const char* list_name) {
        for (std::size_t t = 0; t < tensors.size(); ++t)
            if (tensors[t].data == nullptr && tensors[t].count > 0)
                refuse_null(t, tensors[t].count, list_name);
    }

private:
    std::size_t head() const { return memory.tensors.size() * sizeof(std::uint64_t); }

    void pack_mine() {
        std::byte* const begin = memory.input.data();
        std::byte* at = begin + head();
        for (std::size_t t = 0; t < memory.tensors.size(); ++t) {
            const tensor_ref& tensor = memory.tensors[t];
            const std::uint64_t count = tensor.count;
            std::memcpy(begin + t * sizeof count, &count, sizeof count);
            hvd::detail::pack(tensor, at);
            at += tensor.bytes();
        }
    }

    std::size_t ranks_ = 0;  // the ranks whose messages have come
};

// Copies one tensor's elements from the received messages.
template <class T>
void fill(gathered<T>& result, const fused_gather_call& call, std::size_t tensor) {
    std::size_t total = 0;
    call.for_each_piece([&](std::size_t, std::size_t t, std::size_t count, const std::byte*) {
        if (t != tensor) return;
        result.counts.push_back(count);
        result.displacements.push_back(total);
        total += count;
    });
    result.values.resize(total);
    call.for_each_piece([&](std::size_t r, std::size_t t, std::size_t count, const std::byte* at) {
        if (t == tensor && count > 0)
            std::memcpy(result.values.data() + result.displacements[r], at, count * sizeof(T));
    });
}

template <class... R>
void fill_all(std::tuple<R...>& results, const fused_gather_call& call) {
    std::size_t t = 0;
    for_each_result(results, [&](auto& result) { fill(result, call, t++); });
}

// Gathers asynchronously into new memory.
template <class Results>
struct kept_fused_gather : with_memory<fused_gather_call> {
    Results& results;

    kept_fused_gather(fused_memory own, Results& to, const options& o, const receivers& who = {})
        : with_memory<fused_gather_call>(std::move(own), o, who), results(to) {
        op.unpack = [](void* self, operation&) {
            auto& that = static_cast<kept_fused_gather&>(*static_cast<fused_gather_call*>(self));
            if (that.receives) fill_all(that.results, that);
        };
    }
};

// Gathers into the caller's tensors. `memory` has them too, and their sizes must match. It also
// serves plans, which allocate nothing.
struct fused_gather_into_call : fused_gather_call {
    fused_gather_into_call(fused_memory& m, int rank, const options& o, const receivers& to = {})
        : fused_gather_call(m, o, to), rank_(rank) {
        const auto &tensors = memory.tensors, &outputs = memory.outputs;
        if (receives) check_outputs(tensors, outputs);
        op.self = static_cast<fused_gather_call*>(this);
        op.take = [](void* self) {
            auto& that =
                *static_cast<fused_gather_into_call*>(static_cast<fused_gather_call*>(self));
            if (that.receives) that.unpack_all();
        };
    }

private:
    void check_outputs(const std::vector<tensor_ref>& tensors,
                       const std::vector<tensor_ref>& outputs) {
        check_tensors(outputs, "into()");
        if (outputs.size() != tensors.size())
            refuse(text("hvd: ", op.entry.label(), ": ", outputs.size(), " tensors in into(), ",
                        tensors.size(), " to gather"));
        for (std::size_t t = 0; !op.entry.refused && t < tensors.size(); ++t)
            if (outputs[t].id != tensors[t].id || outputs[t].type != tensors[t].type ||
                !outputs[t].dense)
                refuse(text("hvd: ", op.entry.label(), ": tensor ", t, " of into() is ",
                            outputs[t].type, ", the input ", tensors[t].type,
                            ", and it must be without gaps"));
    }

    void unpack_all() {
        const auto& outputs = memory.outputs;
        std::vector<std::size_t>& filled = memory.sizes;
        filled.assign(outputs.size(), 0);
        for_each_piece([&](std::size_t, std::size_t t, std::size_t count, const std::byte*) {
            filled[t] += count;
        });
        for (std::size_t t = 0; t < outputs.size(); ++t)
            if (filled[t] != outputs[t].count)
                throw usage_error(
                    rank_, text("hvd: ", op.entry.label(), " on rank ", rank_, ": tensor ", t,
                                " of into() has room for ", outputs[t].count,
                                " elements, the result has ", filled[t]));
        filled.assign(outputs.size(), 0);
        for_each_piece([&](std::size_t, std::size_t t, std::size_t count, const std::byte* at) {
            const std::size_t bytes = count * outputs[t].element_bytes;
            copy_bytes(outputs[t].data + filled[t], at, bytes);
            filled[t] += bytes;
        });
    }

    int rank_;
};

}  // namespace hvd::inline v0::detail
