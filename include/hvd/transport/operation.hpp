// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <vector>

#include "../core/error.hpp"
#include "../core/lean/slice.hpp"
#include "../core/lean/table.hpp"
#include "../core/tuning.hpp"
#include "../kernel/reduce.hpp"
#include "../protocol/call_header.hpp"
#include "collective_call.hpp"

namespace hvd::inline v0::detail {

// A piece of memory that goes to one rank, or comes from it.
struct block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
};

// A reduction whose result one rank gets: `count` elements of every rank's block for it.
struct reduction {
    reduce_function function;
    const void* op;
    std::size_t element_bytes;
    std::size_t count;
    std::byte* out;
    double prescale;
    double postscale;
    std::uint8_t op_id;  // as in the header of the call: what a transport may do with it
    std::uint8_t mode;   // rounding; 0: none
    dtype id;
};

// Slices of different element types lie in different cache lines, so that each is aligned.
constexpr std::size_t aligned(std::size_t bytes) {
    return (bytes + tuning::cache_line - 1) / tuning::cache_line * tuning::cache_line;
}

// The first element of a rank's slice, if `count` elements are split evenly. The first ranks have
// one element more.
constexpr std::size_t even_part(std::size_t count, int rank, int size) {
    const std::size_t r = std::size_t(rank), n = std::size_t(size);
    return count / n * r + (r < count % n ? r : count % n);
}

// The elements of one type in a buffer that is reduced. The slice of rank p are the elements from
// bounds[p] to bounds[p + 1]; without bounds the elements are split evenly.
struct reduction_group {
    reduce_function function;
    const void* op;
    std::size_t element_bytes;
    std::size_t offset;
    std::size_t count;
    const std::size_t* bounds;  // null: even slices
    dtype id;
    bool is_scaled;  // its elements have the scales of the call already

    std::size_t begin_of(int rank, int size) const {
        return bounds != nullptr ? bounds[rank] : even_part(count, rank, size);
    }
    std::size_t count_of(int rank, int size) const {
        return begin_of(rank + 1, size) - begin_of(rank, size);
    }
    std::size_t bytes() const { return count * element_bytes; }
    block slice_of(const std::byte* buffer, int rank, int size) const {
        return {const_cast<std::byte*>(buffer) + offset + begin_of(rank, size) * element_bytes,
                count_of(rank, size) * element_bytes};
    }
};

// The size of a result, where a call does not know it beforehand.
constexpr std::size_t unknown_room = SIZE_MAX;

// The memory of a fused call that gathers or scatters. A call that waits uses the communicator's.
struct fused_memory {
    std::vector<tensor_ref> tensors, outputs;
    std::vector<std::size_t> sizes;
    std::vector<std::byte> input, output;
    std::vector<std::byte> dense;  // one tensor, packed
};

// The memory that all operations of a communicator share, so that repeated calls allocate nothing.
struct workspace {
    table<block> send, receive;
    table<block> brought;             // what has come with the headers, by rank
    table<std::size_t> counts;        // each rank's, in elements
    std::vector<std::byte> buffer;    // of fused calls
    std::vector<std::byte> part;      // this rank's slice of a reduction that another rank gets
    std::vector<tensor_ref> tensors;  // of fused calls
    std::vector<std::size_t> offsets;
    std::vector<std::size_t> split;  // counts that a call was given or has made
    fused_memory fused;
    call_header outcome;
    std::exception_ptr failure;  // of this rank alone, until all ranks know

    explicit workspace(int ranks)
        : send(std::size_t(ranks)),
          receive(std::size_t(ranks)),
          brought(std::size_t(ranks)),
          counts(std::size_t(ranks)) {}

    void clear_blocks() {
        for (block& b : send) b = {};
        for (block& b : receive) b = {};
    }
};

// Borrows a vector of the workspace for one blocking call, so that the next call of the same shape
// finds its memory. A queued call has a vector of its own.
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

// An update that is made where gradients are reduced: each rank turns its slice of the reduced
// gradients into new values of the parameters, and these go to all ranks instead. `targets` has one
// tensor of parameters for each tensor of gradients.
struct fused_update {
    slice<const tensor_ref> targets{};
    dtype id = dtype::float32;
    // `values` has `bytes` of reduced elements and gets the new ones; `current` has the present
    // values of the targets. They begin at `place`, in bytes, if all targets are one. `done` bytes
    // of this rank's slices came before; their order is the same in each run of a plan.
    void (*apply)(void* self, std::size_t done, std::size_t place, std::size_t bytes,
                  std::byte* values, const std::byte* current) = nullptr;
    void* self = nullptr;
    std::uint64_t content = 0;  // hash over what it does, which all ranks must do alike
    std::string_view said{};    // that as text: see check_content_lines
};

// A mistake in the arguments of a call. Its text is made behind the communicator, once, and not in
// each file that makes calls.
struct flaw {
    enum what : std::uint8_t { none, null_pointer, extents, no_rank, sizes, overlap };
    what kind;
    std::size_t first, second;  // sizes in elements; the sizes of an overlap are in bytes
};

// The words for a tensor in the error about an input that is not finite: see input_check.hpp.
struct input_names {
    message (*name)(const input_names& self, std::size_t number) = nullptr;
};

// One collective of host memory on its way through a communicator.
struct operation : collective_call {
    detail::flaw flaw{};  // says why the call is refused, where `entry` does not say it yet
    // The tensors of a fused list and where they begin, in the order of `in`. A transport that
    // takes them from there needs no packing. All of them are dense and in place.
    const tensor_ref* tensors = nullptr;
    const std::size_t* offsets = nullptr;
    std::size_t tensor_count = 0;
    const reduction_group* groups = nullptr;  // how each element type is reduced
    std::size_t group_count = 0;
    bool may_leave = false;      // a rank that needs nothing from others leaves the call
    bool only_agree = false;     // no data moves: the ranks compare their headers
    bool checks_finite = false;  // its input is looked at: see input_check.hpp
    // Nobody looks at its input: it is a part of a call on device tensors, or no rank's own.
    bool unchecked = false;
    int threads = 1;  // of this rank: so many want a processor while the call waits
    // The tensors of a reduction as the user gave them. If there are none, `in` is the only one.
    slice<const tensor_ref> inputs{};
    const input_names* names = nullptr;  // of the inputs; null: their numbers
    call_header* headers = nullptr;      // an agreement copies all ranks' headers to here

    // Gives the memory for a result whose size only the call knows, from each rank's count.
    // It may be asked more than once.
    std::byte* (*provide)(void* self, slice<const std::size_t> counts) = nullptr;
    std::size_t room = unknown_room;  // the elements that a scatter's caller has given memory for
    bool has_room = false;            // there is memory, if all ranks give as much as this one
    // They surround the data movement: they bring many tensors into one buffer of buffer_bytes, and
    // back.
    void (*pack)(void* self, operation&) = nullptr;
    bool packs_again = true;  // packing once more, after a call that was refused, changes nothing
    void (*unpack)(void* self, operation&) = nullptr;
    // Replaces `unpack` where it may fail on one rank alone: all ranks learn of the failure.
    void (*take)(void* self) = nullptr;
    void* self = nullptr;
    std::size_t buffer_bytes = 0;
    std::vector<std::byte>* buffer = nullptr;  // replaces the communicator's

    // This rank takes no part in the call and throws this. The peers make the call, so it is
    // refused. Whoever has forfeited the call keeps the exception.
    const std::exception_ptr* failure = nullptr;

    // True if the failure that is caught ends the call as its ranks intend. It is no failure then,
    // and nothing has moved.
    bool (*is_declined)() = nullptr;

    const fused_update* update = nullptr;
    bool updated = false;  // the transport has made the update

    // The scales of a group's elements.
    double prescale(const reduction_group& g) const { return g.is_scaled ? 1 : entry.prescale; }
    double postscale(const reduction_group& g) const { return g.is_scaled ? 1 : entry.postscale; }

    // The reduction of `count` elements of a group, to `to`.
    reduction reduction_of(const reduction_group& g, std::size_t count, std::byte* to) const {
        return {g.function,  g.op,         g.element_bytes, count,      to,
                prescale(g), postscale(g), entry.op,        entry.mode, g.id};
    }
};

// The bytes of a reduction, whose groups lie one after another; 0 without any.
inline std::size_t bytes_of_groups(const operation& op) {
    if (op.group_count == 0) return 0;
    const reduction_group& last = op.groups[op.group_count - 1];
    return last.offset + last.bytes();
}

// A collective call makes and destroys one of these: no function runs at its end.
static_assert(std::is_trivially_destructible_v<operation>);

// This rank can't make a call that its peers begin: it refuses the call and throws `failure`, which
// lives until the call is over. A rank that has no memory left tells it nevertheless.
[[gnu::cold]] inline void forfeit(operation& op, const char* why,
                                  const std::exception_ptr& failure) noexcept {
    op.failure = &failure;
    try {
        op.entry.refuse(text("hvd: ", op.entry.label(), ": ", why, what_of(failure)));
    } catch (...) {
        op.entry.refuse("hvd: a rank has no memory left, not even for a text");
    }
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

// Writes into the header why a call with a flaw is refused.
[[gnu::cold, gnu::noinline]] inline void tell_flaw(operation& op, int size) noexcept {
    const flaw f = std::exchange(op.flaw, {});
    try {
        store(op.entry.text, text("hvd: ", op.entry.label(), ": ", reason_of(f, op, size)));
    } catch (...) {  // no memory for the text
        store(op.entry.text, "hvd: the arguments of a rank are wrong");
    }
}

// Makes memory for at least n elements. Memory that is there stays.
template <class T>
void make_room(std::vector<T>& memory, std::size_t n) {
    if (memory.size() < n) memory.resize(n);
}

}  // namespace hvd::inline v0::detail
