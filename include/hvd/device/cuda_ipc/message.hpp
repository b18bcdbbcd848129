// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "parts.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Where a rank has a tensor that others reach: in an arena, by its number, or in its window for a
// while.
struct ipc_place {
    static constexpr std::int32_t nowhere = -2, window = -1;

    std::int32_t arena = nowhere;
    std::uint64_t offset = 0;
};

struct ipc_places {
    ipc_place in, out;
};

// What a rank says of the calls that it enqueues; the places of further ones follow.
struct ipc_message {
    static constexpr std::size_t most_places = 8;

    call_header what;
    ipc_places places[most_places];
};

// The calls as they are compared, one by one where there is only one.
inline call_header header_of(std::span<const ipc_parts> calls) {
    call_header r;
    hash content;
    for (const auto& [call, size, sent] : calls) {
        content.add(std::uint64_t(call.kind))
            .add(std::uint64_t(call.id))
            .add(call.element_bytes)
            .add(std::uint64_t(call.op))
            .add(std::uint64_t(call.root));
        content.add(call.counts.empty() ? call.count : std::uint64_t(-1));
        if (call.kind != collective::alltoall)
            for (const std::size_t n : call.counts) content.add(n);
    }
    if (calls.empty()) return r;
    const device_call& first = calls.front().call;
    r.kind = first.kind;
    r.fused = calls.size() > 1;
    r.id = first.id;
    r.op = std::uint8_t(first.op);
    r.mode = first.mode;
    r.root = first.root;
    r.prescale = first.prescale;
    r.postscale = first.postscale;
    r.count = first.counts.empty() ? first.count : first.total(calls.front().size);
    r.content = content.value();
    return r;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
