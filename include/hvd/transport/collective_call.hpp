// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/lean/slice.hpp"
#include "../kernel/reduce.hpp"
#include "../protocol/call_header.hpp"

namespace hvd::inline v0::detail {

// One collective without its types, for tensors of the host and of devices alike. Its header says
// which collective it is, of which elements, and how they are reduced and scaled. All counts are
// elements. Everything that it points to outlives the call.
struct collective_call {
    // `count` is the number of elements that this rank gives. In calls on device tensors it is the
    // number that each rank gives, or, in a reduce_scatter and scatter, gets; an alltoall sends so
    // many to each rank.
    call_header entry;
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::size_t element_bytes = 1;
    // One number for each rank, where they differ. In an alltoall this rank sends so many; a
    // scatter's root gives so many. In other calls on device tensors they are each rank's part.
    slice<const std::size_t> counts{};
    // The elements of an alltoall that come from each rank, where this rank knows them beforehand.
    slice<const std::size_t> receive_counts{};
    reduce_function reduce = nullptr;  // reduces elements of the header's type in host memory
    const void* callable = nullptr;    // the operation itself, captures included
    bool fallible = false;             // user code runs in the middle and may throw

    bool reduces() const {
        return entry.kind == collective::allreduce || entry.kind == collective::reduce ||
               entry.kind == collective::reduce_scatter;
    }

    // The parts of the ranks: how many elements they have, and how many there are in all.
    std::size_t count_of(int rank) const {
        return counts.empty() ? std::size_t(entry.count) : counts[std::size_t(rank)];
    }
    std::size_t received_from(int rank) const {
        return receive_counts.empty() ? std::size_t(entry.count)
                                      : receive_counts[std::size_t(rank)];
    }
    std::size_t bytes_of(int rank) const { return count_of(rank) * element_bytes; }
    std::size_t total(int size) const {
        std::size_t sum = 0;
        for (int p = 0; p < size; ++p) sum += count_of(p);
        return sum;
    }
    std::size_t total_received(int size) const {
        std::size_t sum = 0;
        for (int p = 0; p < size; ++p) sum += received_from(p);
        return sum;
    }

    void refuse(std::string_view why) { entry.refuse(why); }
};

// Says which type the elements have.
template <class T>
void describe_elements(collective_call& call) {
    call.element_bytes = sizeof(T);
    call.entry.id = dtype_traits<T>::id;
    if constexpr (dtype_traits<T>::id == dtype::user)
        store(call.entry.type, text(dtype_name<T>(), "/", sizeof(T)));
}

// Says which operation a reduction applies, and how it scales. `op` outlives the call.
template <class Op>
void describe_operation(collective_call& call, const Op& op, double prescale, double postscale) {
    call.entry.op = std::uint8_t(Op::id);
    if constexpr (is_rounded<Op>) call.entry.mode = std::uint8_t(1 + int(op.mode));
    call.entry.prescale = prescale;
    call.entry.postscale = postscale;
    call.callable = &op;
    call.fallible = is_custom<Op>;
}

// Scaled elements need a type that holds fractions, or a rounding.
template <class T, class Op>
constexpr bool holds_fractions =
    is_float_element<T> || is_complex_element<T> || in_wide_integers<T, Op>;

// Refuses scales of elements that hold no fractions.
template <class T>
void refuse_scales(collective_call& call) {
    if (is_one(call.entry.prescale) && is_one(call.entry.postscale)) return;
    call.refuse(text("hvd: ", call.entry.label(), ": ", dtype_name<T>(), " can't be scaled by ",
                     call.entry.prescale, " and ", call.entry.postscale,
                     " without a rounding: use hvd::sum(hvd::rounding::toward_zero) or "
                     "hvd::average(…)"));
}

}  // namespace hvd::inline v0::detail
