// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/network/socket.hpp"

namespace hvd::inline v0::detail {

// The bytes of a connection between two ranks, as they are. A wire of another kind has the same
// functions (see interop/openssl.hpp). None of them blocks.
class plain_wire {
public:
    plain_wire() = default;
    explicit plain_wire(descriptor socket) noexcept : socket_(std::move(socket)) {}

    // Before the first one of a process.
    static void prepare() {}
    // secret() is one of the job that serves this connection alone.
    template <class F>
    static plain_wire over(descriptor socket, bool /*connects*/, const F& /*secret*/) {
        return plain_wire(std::move(socket));
    }

    const descriptor& socket() const noexcept { return socket_; }
    explicit operator bool() const noexcept { return bool(socket_); }

    // Takes bytes of one piece of memory and then of another: as many as it returns. The memory is
    // the caller's again. -1: none, for the reason errno.
    ssize_t write(const std::byte* first, std::size_t first_bytes, const std::byte* second,
                  std::size_t second_bytes) {
        return send_both(socket_, first, first_bytes, second, second_bytes);
    }
    // Fills one piece of memory and then another. A read that is not full took all that was there.
    // 0: the peer has closed the connection. -1: nothing has come, for the reason errno.
    ssize_t read(std::byte* first, std::size_t first_bytes, std::byte* second,
                 std::size_t second_bytes) {
        return receive_both(socket_, first, first_bytes, second, second_bytes);
    }

    // True if some bytes that were taken have not gone. flush() goes on with them, and says if all
    // have gone.
    static constexpr bool has_unsent() { return false; }
    static constexpr bool flush() { return true; }
    // The events that a call is to be made after, to read or to write.
    static short events(bool reads, bool writes) {
        return short((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
    }
    // The reason for which the last call failed.
    static const char* why() { return strerror(errno); }
    static const char* why_closed() { return "its connection was closed"; }

    // Tells the peer that nothing follows. True when this has gone.
    bool end_writing() noexcept {
        ::shutdown(socket_.number(), SHUT_WR);
        return true;
    }
    // Drops what comes. False when the peer has ended the connection.
    bool drop_what_comes() noexcept { return hvd::detail::drop_what_comes(socket_); }

private:
    descriptor socket_;
};

}  // namespace hvd::inline v0::detail
