// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>

#include "../../platform/clock.hpp"
#include "handshake.hpp"
#include "listening_place.hpp"

namespace hvd::inline v0::detail {

// A connection that a rank makes to another one. It tries the addresses one after another, again
// and again: the other may not listen yet, and an address may be that of a bridge that leads
// nowhere.
class outgoing_connection {
public:
    // The peer may be busy, and say nothing for so long.
    outgoing_connection(const shared_secret& secret, int me, int peer, const listening_place& place,
                        bool same_host, std::uint64_t context = 0,
                        std::int64_t patience = 10 * tuning::second)
        : secret_(&secret),
          me_(me),
          peer_(peer),
          context_(context),
          port_(place.port),
          patience_with_peer_(patience) {
        if (same_host) addresses_.push_back(host_address::loopback());
        for (std::size_t i = 0; i < place.addresses && i < listening_place::most_addresses; ++i)
            for (const host_address& way : ways_to(place.address[i])) addresses_.push_back(way);
        if (!same_host || addresses_.empty()) addresses_.push_back(host_address::loopback());
    }

    int peer() const { return peer_; }

    // Begins the next attempt if it is time for it, and says what to wait for.
    bool prepare(pollfd& wanted) {
        if (!socket_ && now() >= rest_until_) begin();
        if (!socket_) return false;
        wanted = {socket_.number(), short(!talk_ || talk_->wants_to_write() ? POLLOUT : POLLIN), 0};
        return true;
    }

    // Goes on with what `prepare` has waited for: true once both sides have proved themselves.
    bool advance(bool ready) {
        if (!socket_) return false;
        const std::int64_t patience = talk_ ? patience_with_peer_ : patience_in_round(round());
        if (!ready) {
            const bool may_count_on_it = talk_ && talk_->knows_peer();
            if (watched_.look() > patience && !may_count_on_it) drop("it does not answer");
            return false;
        }
        if (!talk_) {
            if (const int code = error_of(socket_); code != 0) return drop(strerror(code));
            talk_ = std::make_unique<handshake>(*secret_, me_, peer_, context_);
        }
        switch (talk_->advance(socket_)) {
            case handshake::state::goes_on: return false;
            case handshake::state::refused: return drop(talk_->reason());
            case handshake::state::done: break;
        }
        return true;
    }

    descriptor take() { return std::move(socket_); }

    // The last attempt, and the other addresses that were tried, for an error.
    message print() const {
        message others;
        for (const host_address& a : addresses_) {
            const message other = a.print();
            if (tried_.empty() || a.is_loopback() || std::string_view(other) == tried_) continue;
            others += others.empty() ? ", also tried " : ", ";
            others += other;
        }
        return text("port ", port_, " of ", tried_, why_.empty() ? "" : ": ", why_, others);
    }

private:
    static constexpr std::int64_t rest = 10 * tuning::millisecond;

    // The attempt that has begun belongs to it.
    std::size_t round() const { return (next_address_ - 1) / addresses_.size(); }
    void begin() {
        const host_address& to = addresses_[next_address_++ % addresses_.size()];
        tried_ = to.print();
        watched_ = watched_time();
        socket_ = begin_connect(to, port_);
        if (socket_) return;
        if (is_out_of_descriptors(errno)) throw_system(me_, "socket", errno);
        drop(strerror(errno));
    }
    bool drop(const char* why) {
        why_ = why;
        socket_ = descriptor();
        talk_.reset();
        rest_until_ = now() + rest;
        return false;
    }

    const shared_secret* secret_;
    int me_, peer_;
    std::uint64_t context_;
    std::uint16_t port_;
    std::int64_t patience_with_peer_;
    std::vector<host_address> addresses_;
    std::size_t next_address_ = 0;
    descriptor socket_;
    std::unique_ptr<handshake> talk_;  // null while it still connects
    watched_time watched_;             // since the attempt has begun
    time_point rest_until_ = 0;
    message tried_, why_;
};

}  // namespace hvd::inline v0::detail
