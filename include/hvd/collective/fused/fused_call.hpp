// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "fused_results.hpp"

namespace hvd::inline v0::detail {

// Returns a hash over the element types and all but the first extents, which ranks that gather or
// exchange have in common.
inline std::uint64_t row_content(const std::vector<tensor_ref>& tensors) {
    hash h;
    h.add(tensors.size());
    for (tensor_ref t : tensors) {
        t.extents[0] = 0;
        h.add(t);
    }
    return h.value();
}

// A call that moves many tensors as one message from rank to rank: the counts of the tensors, then
// their elements. `memory` has the tensors.
struct fused_call : call {
    fused_memory& memory;

    fused_call(collective kind, std::string_view name, fused_memory& m)
        : call(kind, name), memory(m) {
        op.entry.fused = true;
        op.self = this;
    }

    // Calls f(message, tensor, count, bytes) for all received tensors, message after message.
    template <class F>
    void for_each_piece(F&& f) const {
        const std::byte* at = memory.output.data();
        for (std::size_t m = 0; m < received_; ++m) {
            const std::byte* const counts = at;
            at += head();
            for (std::size_t t = 0; t < memory.tensors.size(); ++t) {
                std::uint64_t count;
                std::memcpy(&count, counts + t * sizeof count, sizeof count);
                f(m, t, std::size_t(count), at);
                at += std::size_t(count) * memory.tensors[t].element_bytes;
            }
        }
    }

protected:
    std::size_t head() const { return memory.tensors.size() * sizeof(std::uint64_t); }

    void check_tensors(const std::vector<tensor_ref>& tensors, const char* list_name) {
        std::size_t bytes = 0;
        for (std::size_t t = 0; t < tensors.size(); ++t)
            check_part(tensors[t].data, tensors[t].count, tensors[t].element_bytes, t, bytes,
                       list_name);
    }

    // Writes a message at `at` and returns its end. part(t) is what it has of a tensor.
    template <class Part>
    std::byte* pack_message(std::byte* at, Part part) const {
        std::byte* counts = at;
        at += head();
        for (const tensor_ref& tensor : memory.tensors) {
            const tensor_ref t = part(tensor);
            const std::uint64_t count = t.count;
            std::memcpy(counts, &count, sizeof count);
            counts += sizeof count;
            hvd::detail::pack(t, at);
            at += t.bytes();
        }
        return at;
    }

    // Makes memory for messages of the given sizes.
    std::byte* provide(std::size_t messages, slice<const std::size_t> bytes) {
        received_ = messages;
        memory.output.resize(total_of(bytes));
        return memory.output.data();
    }

    // Gives the call its outputs, which are in `memory`. Their sizes must match. `to_do` says what
    // the call does with its tensors.
    void set_outputs(const char* to_do, int rank) {
        check_outputs(memory.tensors, memory.outputs, to_do);
        rank_ = rank;
        op.take = [](void* self) { static_cast<fused_call*>(self)->unpack_all(); };
    }

private:
    void check_outputs(const std::vector<tensor_ref>& tensors,
                       const std::vector<tensor_ref>& outputs, const char* to_do) {
        check_tensors(outputs, "into()");
        if (outputs.size() != tensors.size())
            refuse(text("hvd: ", op.entry.label(), ": ", outputs.size(), " tensors in into(), ",
                        tensors.size(), " to ", to_do));
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

    std::size_t received_ = 0;  // messages
    int rank_ = 0;
};

// Copies one tensor's elements from the received messages.
template <class T>
void fill(gathered<T>& result, const fused_call& call, std::size_t tensor) {
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

// The same where one message has come.
template <class T>
void fill(std::vector<T>& result, const fused_call& call, std::size_t tensor) {
    call.for_each_piece([&](std::size_t, std::size_t t, std::size_t count, const std::byte* at) {
        if (t != tensor) return;
        result.resize(count);
        if (count > 0) std::memcpy(result.data(), at, count * sizeof(T));
    });
}

template <class... R>
void fill_all(std::tuple<R...>& results, const fused_call& call) {
    std::size_t t = 0;
    for_each_result(results, [&](auto& result) { fill(result, call, t++); });
}

// Makes the new memory where all ranks learn whether a rank has none.
template <class Results, class Call>
void take_into(Results& results, Call& call) {
    call.results = &results;
    call.op.take = [](void* self) {
        auto& that = static_cast<Call&>(*static_cast<fused_call*>(self));
        fill_all(*that.results, that);
    };
}

// A call into new memory. A rank that receives nothing takes nothing.
template <class Results, class Call>
struct filled_fused : Call {
    Results* results;

    template <class... A>
    filled_fused(Results& to, A&&... arguments) : Call(std::forward<A>(arguments)...) {
        if (this->receives()) take_into(to, *this);
    }
};

// The same, which outlives the function that makes it.
template <class Results, class Call>
struct kept_fused : with_memory<Call> {
    Results* results;

    template <class... A>
    kept_fused(fused_memory own, Results& to, A&&... arguments)
        : with_memory<Call>(std::move(own), std::forward<A>(arguments)...) {
        if (this->receives()) take_into(to, *this);
    }
};

}  // namespace hvd::inline v0::detail
