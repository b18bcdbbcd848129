// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <chrono>
#include <cstddef>
#include <string_view>

namespace hvd {
inline namespace v0 {

/// The rank that sends (broadcast, scatter) or receives (reduce, gather): `hvd::root{0}`.
struct root {
    int rank = 0;
    constexpr explicit root(int r = 0) : rank(r) {}
};

/// Says that a communicator made from a handle owns it and frees it.
struct adopt_t {};
inline constexpr adopt_t adopt{};

/// Says that a communicator made from a handle leaves it to its owner, who keeps it alive.
struct borrow_t {};
inline constexpr borrow_t borrow{};

/// What a call may be told beyond its arguments.
struct options {
    std::string_view name = {};  ///< for errors and timelines; need not be unique (feature I5)
    std::chrono::nanoseconds deadline{0};  ///< for this call; 0: the communicator's
};

/// What a reduction may be told beyond its arguments. Feature B4.
struct reduce_options {
    std::string_view name = {};  ///< for errors and timelines
    double prescale = 1;         ///< each rank's tensor is multiplied by it before the reduction
    double postscale = 1;        ///< the result is multiplied by it
    std::chrono::nanoseconds deadline{0};  ///< for this call; 0: the communicator's
};

/// What a communicator is told when it is made; all ranks say the same.
struct communicator_options {
    std::chrono::nanoseconds deadline{0};  ///< for every call; 0: none, wait as MPI does
    std::chrono::nanoseconds destructor_deadline = std::chrono::seconds(2);
    int node_size = 0;  ///< ranks taken as one node (as if on hosts of their own); 0: as it is,
                        ///< or what the environment variable HVD_NODE_SIZE says
    std::size_t window_bytes = std::size_t(256) << 10;  ///< shared memory per rank and half
};

}  // namespace v0
}  // namespace hvd
