// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../core/lean/slice.hpp"
#include "../core/lean/table.hpp"
#include "../core/tuning.hpp"
#include "collective_call.hpp"
#include "transport.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Parts of different element types lie apart, so that each is aligned.
constexpr std::size_t aligned(std::size_t bytes) {
    return (bytes + tuning::cache_line - 1) / tuning::cache_line * tuning::cache_line;
}

// Where rank's part of `count` elements begins, if they are split evenly, the first ranks having
// one more.
constexpr std::size_t even_part(std::size_t count, int rank, int size) {
    const std::size_t r = std::size_t(rank), n = std::size_t(size);
    return count / n * r + (r < count % n ? r : count % n);
}

// One element type's share of a buffer that is reduced. Rank p's part of it are the elements from
// bounds[p] to bounds[p + 1]; without bounds the elements are split evenly.
struct reduction_group {
    reduce_function function;
    const void* op;
    std::size_t element_bytes;
    std::size_t offset;
    std::size_t count;
    const std::size_t* bounds = nullptr;
    dtype id = dtype::user;

    std::size_t begin_of(int rank, int size) const {
        return bounds != nullptr ? bounds[rank] : even_part(count, rank, size);
    }
    std::size_t count_of(int rank, int size) const {
        return begin_of(rank + 1, size) - begin_of(rank, size);
    }
    block part(const std::byte* buffer, int rank, int size) const {
        return {const_cast<std::byte*>(buffer) + offset + begin_of(rank, size) * element_bytes,
                count_of(rank, size) * element_bytes};
    }
};

// A reduction within another, which changes its arguments: its address is the `op` of that one.
struct inner_reduction {
    reduce_function function = nullptr;
    const void* op = nullptr;

    static void run(reduce_args args) {
        const inner_reduction& inner = *static_cast<const inner_reduction*>(args.op);
        args.op = inner.op;
        inner.function(args);
    }
};

// The memory of a fused call that gathers or scatters: the communicator's for a call that waits.
struct fused_memory {
    std::vector<tensor_ref> tensors, outputs;
    std::vector<std::size_t> sizes;
    std::vector<std::byte> input, output;
    std::vector<std::byte> dense;  // one tensor, packed
};

// What the operations of one communicator share, so that repeated calls allocate nothing.
struct workspace {
    table<block> send, receive;
    table<std::size_t> counts;        // each rank's, in elements
    std::vector<std::byte> buffer;    // of fused calls
    std::vector<std::byte> part;      // a rank's part of a reduction it does not keep
    std::vector<tensor_ref> tensors;  // of fused calls
    std::vector<std::size_t> offsets;
    std::vector<std::size_t> split;  // counts that a call was given or made
    fused_memory fused;
    call_header outcome;
    std::exception_ptr failure;  // of this rank alone, until all know

    explicit workspace(int ranks)
        : send(std::size_t(ranks)), receive(std::size_t(ranks)), counts(std::size_t(ranks)) {}

    void clear_blocks() {
        for (block& b : send) b = {};
        for (block& b : receive) b = {};
    }
};

// A vector of the workspace for the time of one blocking call, so that the next call of the same
// shape finds its memory; a queued call has its own.
class lent_sizes : public std::vector<std::size_t> {
public:
    explicit lent_sizes(workspace* from) : from_(from) {
        if (from_ != nullptr) swap(from_->split);
    }
    lent_sizes(const lent_sizes&) = delete;
    lent_sizes& operator=(const lent_sizes&) = delete;
    ~lent_sizes() {
        if (from_ != nullptr) swap(from_->split);
    }

private:
    workspace* from_;
};

// What becomes of a reduction where it is made: each rank turns its slice of the reduced gradients
// into new values of the parameters at `targets`, one for each tensor, and these go to all ranks
// instead.
struct fused_update {
    slice<const tensor_ref> targets;
    dtype id = dtype::float32;
    // `values` has `bytes` of reduced elements and gets the new ones; `current` has those of the
    // targets. `done` bytes of this rank's slices, whose order is the same in each run, came
    // before.
    void (*apply)(void* self, std::size_t done, std::size_t bytes, std::byte* values,
                  const std::byte* current) = nullptr;
    void* self = nullptr;
    std::uint64_t content = 0;  // of what it does: each rank does its part for all of them
};

// What is wrong with the arguments of a call. Its text is made behind the communicator, once, and
// not in each file that makes calls.
struct flaw {
    enum what : std::uint8_t { none, null_pointer, extents, no_rank, sizes, overlap };
    what kind = none;
    std::size_t first = 0, second = 0;  // sizes, in elements; of an overlap, in bytes
};

// One collective of host memory on its way through a communicator.
struct operation : collective_call {
    detail::flaw flaw;  // says why the call is refused, where `entry` does not say it yet
    // The tensors of a fused list and where they begin, in the order of `in`. A transport that
    // takes them from there needs no packing. All of them are dense and in place.
    slice<const tensor_ref> tensors;
    slice<const std::size_t> offsets;
    slice<const reduction_group> groups;  // how each element type is reduced
    bool only_agree = false;              // nothing moves: a plan is made

    // Gives the memory for a result whose size only the call knows, from each rank's count.
    std::byte* (*provide)(void* self, slice<const std::size_t> counts) = nullptr;
    // They surround the data movement: they bring many tensors into one buffer of buffer_bytes, and
    // back.
    void (*pack)(void* self, operation&) = nullptr;
    void (*unpack)(void* self, operation&) = nullptr;
    // Replaces `unpack` where it may fail on one rank alone: all ranks learn of the failure.
    void (*take)(void* self) = nullptr;
    void* self = nullptr;
    std::size_t buffer_bytes = 0;
    std::vector<std::byte>* buffer = nullptr;  // replaces the communicator's

    // This rank takes no part in the call and throws this. The peers make the call, so it is
    // refused.
    std::exception_ptr failure;

    const fused_update* update = nullptr;
    bool updated = false;  // by the transport
};

// Where one rank can't do what its peers begin: it refuses the call and throws `failure`.
[[gnu::cold]] inline void forfeit(operation& op, const char* why, std::exception_ptr failure) {
    op.failure = std::move(failure);
    if (op.entry.refused) return;  // the first reason wins
    op.entry.refused = true;
    store(op.entry.text, text("hvd: ", op.entry.label(), ": ", why, what_of(op.failure)));
}

[[gnu::cold]] inline message reason_of(const flaw& f, const operation& op, int size) {
    const call_header& entry = op.entry;
    switch (f.kind) {
        case flaw::null_pointer: return text("null pointer with ", entry.count, " elements");
        case flaw::extents: {
            message extents;
            for (std::size_t d = 0; d < entry.dimensions; ++d)
                extents += text(d > 0 ? " x " : "", entry.extents[d]);
            return text("no memory has ", extents, " elements of ", op.element_bytes, " bytes");
        }
        case flaw::no_rank:
            return text("root ", entry.root, " is not a rank of this communicator of size ", size);
        case flaw::sizes: return text("output has ", f.first, " elements, input ", f.second);
        case flaw::overlap:
            return text("input of ", f.first, " bytes and output of ", f.second,
                        " bytes overlap in part; they must be the same or apart");
        case flaw::none: break;
    }
    return {};
}

// Says in its header why a call with a flaw is refused.
[[gnu::cold, gnu::noinline]] inline void tell_flaw(operation& op, int size) {
    const flaw f = std::exchange(op.flaw, {});
    store(op.entry.text, text("hvd: ", op.entry.label(), ": ", reason_of(f, op, size)));
}

// Memory of a call before it enters; a rank that has none forfeits it.
template <class T>
void make_room(operation& op, std::vector<T>& memory, std::size_t n) {
    try {
        if (memory.size() < n) memory.resize(n);
    } catch (...) {
        forfeit(op, "no memory for its data: ", std::current_exception());
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
