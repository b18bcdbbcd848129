// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "fused_call.hpp"

namespace hvd::inline v0::detail {

// The ranks that get what is gathered: all of them, or one.
struct receivers {
    collective kind = collective::allgather;
    root one = root{0};
    int rank = 0, size = 1;

    bool has_this_rank() const { return kind == collective::allgather || one.rank == rank; }
};

// Gathers many tensors as one message per rank.
struct fused_gather_call : fused_call {
    fused_gather_call(fused_memory& m, const options& o, const receivers& to = {})
        : fused_call(to.kind, o.name, m), receives_(to.has_this_rank()) {
        if (to.kind == collective::gather) check_root(to.one.rank, to.size);
        check_tensors(memory.tensors, "fuse()");
        std::size_t bytes = head();
        for (const tensor_ref& t : memory.tensors) bytes += t.bytes();
        if (!op.entry.refused) make_room(memory.input, bytes);
        op.entry.count = bytes;
        op.entry.content = row_content(memory.tensors);
        op.in = memory.input.data();
        op.pack = [](void* self, operation&) {
            auto& that = static_cast<fused_gather_call&>(*static_cast<fused_call*>(self));
            that.pack_message(that.memory.input.data(), [](const tensor_ref& t) { return t; });
        };
        op.take = [](void*) {};  // the ranks learn from each other whether they had memory
        if (!receives_) return;
        op.provide = [](void* self, slice<const std::size_t> counts) {
            auto& that = static_cast<fused_gather_call&>(*static_cast<fused_call*>(self));
            return that.fused_call::provide(counts.size(), counts);
        };
    }

    bool receives() const { return receives_; }

private:
    const bool receives_;
};

// Gathers into the caller's tensors, which `memory` has, too. It also serves plans, which allocate
// nothing.
struct fused_gather_into_call : fused_gather_call {
    fused_gather_into_call(fused_memory& m, int rank, const options& o, const receivers& to = {})
        : fused_gather_call(m, o, to) {
        if (receives()) set_outputs("gather", rank);
    }
};

}  // namespace hvd::inline v0::detail
