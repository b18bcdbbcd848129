// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../../core/tuning.hpp"
#include "../../kernel/cuda/reduction.hpp"
#include "../parts.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// At most `most` bytes of every part of a call, from `first` on. They lie in a window, part after
// part.
struct ipc_piece {
    std::size_t call;
    std::size_t first, most;
    std::size_t base, stride;

    // Returns the bytes of a part that has `all`.
    std::size_t bytes_of(std::size_t all) const {
        return all <= first ? 0 : all - first < most ? all - first : most;
    }
};

using ipc_step = std::vector<ipc_piece>;

// Places are multiples of this, so that ranks share no sector of memory and vectors of the kernel
// are aligned.
constexpr std::size_t ipc_unit = tuning::device_unit;

constexpr std::size_t whole_units(std::size_t bytes) {
    return (bytes + ipc_unit - 1) / ipc_unit * ipc_unit;
}

// Returns the bytes of each half of a window: at least a unit for each rank.
constexpr std::size_t room_for(int size, std::size_t wanted) {
    const std::size_t least = ipc_unit * std::size_t(size), room = whole_units(wanted);
    return room > least ? room : least;
}

// Cuts the calls into steps. Each step fits into `room` bytes of every rank, and small calls share
// one. All ranks get the same steps.
inline std::vector<ipc_step> cut_into_steps(std::span<const call_parts> calls, std::size_t room) {
    std::vector<ipc_step> steps;
    std::size_t used = room;
    for (std::size_t c = 0; c < calls.size(); ++c) {
        const std::size_t all = calls[c].longest(), parts = std::size_t(calls[c].parts());
        for (std::size_t done = 0; done < all;) {
            const std::size_t fits = (room - used) / parts / ipc_unit * ipc_unit, left = all - done;
            if (left > fits && used > 0) {
                steps.emplace_back();
                used = 0;
                continue;
            }
            const std::size_t most = left < fits ? left : fits;
            steps.back().push_back({c, done, most, used, whole_units(most)});
            used += parts * whole_units(most);
            done += most;
        }
    }
    return steps;
}

// Makes one step for calls that need no window.
inline std::vector<ipc_step> one_step(std::span<const call_parts> calls) {
    ipc_step step;
    for (std::size_t c = 0; c < calls.size(); ++c)
        if (const std::size_t all = calls[c].longest(); all > 0) step.push_back({c, 0, all, 0, 0});
    return step.empty() ? std::vector<ipc_step>() : std::vector<ipc_step>{step};
}

// True for a call whose inputs are so small that each rank reduces by itself what it takes, instead
// of a slice for all: reading more takes less time than a second meeting. All ranks know the sizes.
inline bool is_small(const call_parts& p, std::size_t room) {
    const std::size_t inputs = p.longest() * std::size_t(p.parts()) * std::size_t(p.size);
    return !p.is_uneven_exchange() && inputs <= room / tuning::device_small_share;
}

// The bytes that this rank reduces.
struct ipc_slice {
    std::size_t begin, end;
};
inline ipc_slice slice_of(std::size_t bytes, int rank, int size) {
    const std::size_t units = whole_units(bytes) / ipc_unit, n = std::size_t(size),
                      r = std::size_t(rank);
    const std::size_t begin = units * r / n * ipc_unit, end = units * (r + 1) / n * ipc_unit;
    return {begin < bytes ? begin : bytes, end < bytes ? end : bytes};
}

inline reduction_launch launch_of(const collective_call& call, int size) {
    reduction_launch l{};
    const reduced_numbers numbers = numbers_of(call.entry.id, call.entry.op);
    l.id = numbers.id;
    l.op = numbers.op;
    l.ranks = size;
    l.divisor = call.entry.op == op::average::id ? size : 0;
    l.mode = rounding(call.entry.mode > 0 ? call.entry.mode - 1 : 0);
    l.prescale = call.entry.prescale;
    l.postscale = call.entry.postscale;
    return l;
}

inline void launch(reduction_launch& l, std::size_t bytes, cudaStream_t stream, int rank) {
    l.count = bytes / bytes_of_number(l.id);
    l.head = head_of(l);
    if (l.count > 0)
        check_cuda(launch_reduction(l, stream), "launch of hvd's reduction kernel", rank);
}

inline void copy_apart(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream,
                       int rank) {
    if (to != from) copy_async(to, from, bytes, cudaMemcpyDeviceToDevice, stream, rank);
}

// Leaves out the bytes that are kept where they are.
inline void copy_around(const ipc_slice& kept, std::byte* to, const std::byte* from,
                        std::size_t bytes, cudaStream_t stream, int rank) {
    copy_apart(to, from, kept.begin, stream, rank);
    copy_apart(to + kept.end, from + kept.end, bytes - kept.end, stream, rank);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
