// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../protocol/call_header.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Where a rank has a tensor that others reach: in the arena of this number, or in its window for a
// while.
struct ipc_place {
    static constexpr std::int32_t nowhere = -2, window = -1;

    std::int32_t arena = nowhere;
    std::uint64_t offset = 0;
};

struct ipc_places {
    ipc_place in, out;
};

// What a rank tells the others of the calls that it enqueues. The places of further calls follow.
struct ipc_message {
    static constexpr std::size_t most_places = 8;

    call_header header;
    ipc_places places[most_places];
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
