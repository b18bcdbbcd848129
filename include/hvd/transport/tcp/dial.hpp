// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/clock.hpp"
#include "handshake.hpp"

namespace hvd::inline v0::detail {

inline bool await_socket(const descriptor& socket, int events, time_point until) {
    for (;;) {
        std::int64_t left = (until - now()) / tuning::millisecond + 1;
        if (left < 0) left = 0;  // this thread may have had no processor, and looks once
        pollfd p{socket.number(), short(events), 0};
        if (::poll(&p, 1, int(left < 1000 ? left : 1000)) > 0) return true;
        if (left == 0) return false;
    }
}

// True if nobody listens there, as the host says.
inline bool is_refused(const host_address& address, std::uint16_t port, time_point until) {
    const descriptor socket = begin_connect(address, port);
    if (!socket) return errno == ECONNREFUSED;
    return await_socket(socket, POLLOUT, until) && error_of(socket) == ECONNREFUSED;
}

// Who may be met by mistake: he knows another secret.
struct another_kind {
    shared_secret secret;
    const char* why;
};

// Connects to one address and proves that both sides know the secret, while the caller waits.
class dial {
public:
    // Errors name the rank `told_as`.
    dial(const shared_secret& secret, int me, int peer, int told_as,
         const another_kind* another = nullptr)
        : secret_(secret), me_(me), peer_(peer), told_as_(told_as), another_(another) {}

    // Returns no connection if that fails: `why` says the reason. The peer's host answers before
    // `until`, and the peer before `limit`.
    // @throws usage_error if this process has no descriptor left
    descriptor to(const host_address& address, std::uint16_t port, time_point until,
                  time_point limit) {
        is_foreign_ = false;
        descriptor socket = begin_connect(address, port);
        if (!socket && errno == EMFILE) throw_system(told_as_, "socket", EMFILE);
        if (!socket) why_ = strerror(errno);
        else if (!await_socket(socket, POLLOUT, until)) why_ = "it does not answer";
        else if (const int code = error_of(socket); code != 0) why_ = strerror(code);
        else if (prove(socket, limit)) return socket;
        why_ += text(" (", address.print(port), ")");
        return {};
    }

    // With the address.
    const message& why() const { return why_; }
    // True if the peer has shown that it does not belong to this job.
    bool is_foreign() const { return is_foreign_; }
    // The secret of the connection that was made last: see handshake.
    const shared_secret& connection_key() const { return connection_key_; }

private:
    bool prove(const descriptor& socket, time_point limit) {
        handshake talk(secret_, me_, peer_);
        for (;;) switch (talk.advance(socket)) {
                case handshake::state::done: connection_key_ = talk.connection_key(); return true;
                case handshake::state::goes_on:
                    if (await_socket(socket, talk.wants_to_write() ? POLLOUT : POLLIN, limit))
                        break;
                    why_ = "it does not answer";
                    return false;
                case handshake::state::refused:
                    why_ = another_ != nullptr && talk.has_proved(another_->secret) ? another_->why
                                                                                    : talk.reason();
                    is_foreign_ = talk.is_foreign();
                    return false;
            }
    }

    const shared_secret& secret_;
    int me_, peer_, told_as_;
    const another_kind* another_;
    message why_;
    shared_secret connection_key_{};
    bool is_foreign_ = false;
};

}  // namespace hvd::inline v0::detail
