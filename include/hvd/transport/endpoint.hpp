// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>

#include "../standard.hpp"

namespace hvd::inline v0 {

/// The functions that one rank of a communicator needs for hvd to build every collective on them.
///
/// - `rank()`, `size()`: this rank and the number of ranks.
/// - `send(peer, data, bytes)`: begins to send; `data` stays untouched until `poll()` says so.
///   Sends to one peer arrive in their order, each filling one `recv` of the same size.
/// - `recv(peer, data, bytes)`: begins to receive. Never called for the rank itself or with 0
///   bytes.
/// - `poll()`: makes progress; true when everything begun is complete. Must not block.
/// - `pending(peer)`: true if a message to or from that peer is not complete (names late ranks).
/// - `cancel()`: gives up everything begun. Once it returns, the endpoint neither reads nor writes
///   the memory that it was given, however late a peer is. It is not used for data afterwards.
///
/// One thread at a time calls it. It throws failures as types derived from `hvd::error`.
///
/// It may also have:
/// - `subset(ranks, context)`: all of `ranks` (positions in this endpoint, in the new order) and no
///   others call it. It returns an endpoint among them (a `std::unique_ptr`, or another owner with
///   `release()`). `context` is the same on all of them and new in each call on this endpoint. It
///   makes `split`, `subset`, `local` and `cross` work;
/// - `node_of(rank)`: equal numbers for ranks that share a node (without it each is a node);
/// - `threaded()`: true if a progress thread may drive the endpoint (without it: no).
///
/// hvd's own endpoints have more functions (shared memory, notices), whose types are internal.
template <class L>
concept endpoint =
    requires(L& l, const L& c, int peer, const std::byte* out, std::byte* in, std::size_t n) {
        { c.rank() } -> std::convertible_to<int>;
        { c.size() } -> std::convertible_to<int>;
        l.send(peer, out, n);
        l.recv(peer, in, n);
        { l.poll() } -> std::convertible_to<bool>;
        { c.pending(peer) } -> std::convertible_to<bool>;
        { l.cancel() } noexcept;
    };

/// An endpoint among ranks that share all their memory and need no messages, such as those of
/// `hvd::threads`. `region()` returns the shared memory. Its type is internal.
template <class L>
concept shared_endpoint = requires(L& l, const L& c) {
    { c.rank() } -> std::convertible_to<int>;
    { c.size() } -> std::convertible_to<int>;
    l.region()->ranks();
};

/// An endpoint that can make endpoints among some of its ranks.
template <class L>
concept splittable_endpoint = requires(L& l, std::span<const int> ranks, int context) {
    { l.subset(ranks, context).release() } -> std::convertible_to<L*>;
};

}  // namespace hvd::inline v0
