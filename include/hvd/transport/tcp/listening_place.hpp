// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/network/socket.hpp"

namespace hvd::inline v0::detail {

// Where a rank listens. Ranks send it.
struct listening_place {
    static constexpr std::size_t most_addresses = 8;

    std::uint64_t host = 0;  // host_identity(), or a hash of what was declared in its place
    std::uint16_t port = 0;
    std::uint16_t addresses = 0;
    host_address address[most_addresses];

    void add(const host_address& a) {
        if (addresses < most_addresses) address[addresses++] = a;
    }
};

}  // namespace hvd::inline v0::detail
