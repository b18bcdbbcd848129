// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../protocol/call_header.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The place of a tensor that other ranks reach: in the arena of this number, or for a while in the
// rank's window.
struct ipc_place {
    static constexpr std::int32_t nowhere = -2, window = -1;

    std::int32_t arena = nowhere;
    std::uint64_t offset = 0;
};

struct ipc_places {
    ipc_place in, out;
};

// The message of a rank about the calls that it enqueues. The places of further calls follow.
struct ipc_message {
    static constexpr std::size_t most_places = 8;

    call_header header;
    ipc_places places[most_places];
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
