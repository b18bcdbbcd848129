// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Rank 0 and rank 1 of a communicator in one thread, over each kind of wire.

#include <sys/socket.h>

#include <random>
#include <string>
#include <vector>

#include <hvd/tcp.hpp>
#if defined(HVD_TEST_OPENSSL)
#include <hvd/interop/openssl.hpp>
#define HVD_TEST_WIRES hvd::detail::plain_wire, hvd::detail::tls_wire
#else
#define HVD_TEST_WIRES hvd::detail::plain_wire
#endif

#include "hvd_test.hpp"

namespace hvd_test {

inline void open_both_ends(hvd::detail::descriptor (&socket)[2]) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    for (int i = 0; i < 2; ++i) socket[i] = hvd::detail::descriptor(ends[i]);
}

inline constexpr hvd::detail::shared_secret secret_of_test{std::byte(1), std::byte(2)};

template <class Wire>
Wire wire_over(hvd::detail::descriptor socket, int rank,
               const hvd::detail::shared_secret& secret = secret_of_test) {
    if constexpr (std::is_same_v<Wire, hvd::detail::plain_wire>) return Wire(std::move(socket));
    else return Wire(std::move(socket), rank == 1, secret);
}

// The messages of one of the two ranks.
template <class Wire>
hvd::detail::basic_tcp_messages<Wire> messages_of(int rank, Wire wire) {
    std::vector<Wire> wires(2);
    wires[std::size_t(1 - rank)] = std::move(wire);
    return hvd::detail::basic_tcp_messages<Wire>(std::move(wires));
}
template <class Wire>
hvd::detail::basic_tcp_messages<Wire> messages_over(hvd::detail::descriptor* sockets, int rank) {
    return messages_of(rank, wire_over<Wire>(std::move(sockets[rank]), rank));
}

// `meanwhile` runs between the steps of the ranks.
template <class Messages, class F>
bool get_through(Messages& a, Messages& b, F meanwhile) {
    for (int i = 0; i < 100000; ++i) {
        const bool one = a.poll();
        meanwhile();
        const bool other = b.poll();
        meanwhile();
        if (one && other) return true;
    }
    return false;
}
template <class Messages>
void finish(Messages& a, Messages& b) {
    if (!get_through(a, b, [] {})) FAIL("the messages do not arrive");
}

// Both ranks, which have heard of each other.
template <class Wire>
struct pair_of_ranks {
    pair_of_ranks() {
        hvd::detail::descriptor socket[2];
        open_both_ends(socket);
        std::byte sent[2] = {}, got[2] = {};
        for (int r = 0; r < 2; ++r) {
            end[r] = messages_over<Wire>(socket, r);
            end[r].send(1 - r, sent + r, 1);
            end[r].receive(1 - r, got + r, 1);
        }
        finish(end[0], end[1]);
        begun = 1;
    }
    hvd::detail::basic_tcp_messages<Wire> end[2];
    std::uint64_t begun = 0;  // messages
};

inline std::vector<std::byte> random_bytes(std::size_t n, std::mt19937& random) {
    std::vector<std::byte> bytes(n);
    for (std::byte& b : bytes) b = std::byte(random());
    return bytes;
}

// The reason for which a peer is lost, or "".
template <class Messages>
std::string why_lost(Messages& m, int peer = 1) {
    hvd::detail::failure_notice news;
    hvd::detail::message why;
    m.poll();
    while (m.receive_notice(news)) {
    }
    const std::vector<int> ranks = m.lost(why);
    CHECK((ranks.empty() || ranks == std::vector<int>{peer}));
    return std::string(std::string_view(why));
}

}  // namespace hvd_test
