// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>

#include "../../platform/clock.hpp"
#include "handshake.hpp"
#include "listening_place.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Brings the connections of one rank about: one to `parent` (-1: none), and one from each of
// `children`. Each is authenticated. Others that connect meanwhile are refused and do no harm.
class meeting {
public:
    meeting(int rank, const shared_secret& secret, const listening_socket& socket)
        : rank_(rank), secret_(secret), listener_(socket) {}

    struct connection {
        int peer;
        descriptor socket;
    };

    // @throws peer_error naming the ranks that have not come before the limit.
    std::vector<connection> run(int parent, const listening_place& place, bool same_host,
                                std::vector<int> children, time_point limit) {
        missing_ = std::move(children);
        if (parent >= 0) prepare(parent, place, same_host);
        while (parent_ >= 0 || !missing_.empty()) {
            if (now() > limit) give_up();
            turn(limit);
        }
        return std::move(made_);
    }

private:
    // A stranger that says nothing is dropped after so long, or when more come than this.
    static constexpr std::int64_t patience = 5 * tuning::second;
    static constexpr std::size_t most_strangers = 256;

    struct attempt {
        descriptor socket;
        std::unique_ptr<handshake> talk;  // null while it still connects
        time_point since;
    };

    // ---- to the parent --------------------------------------------------------------------------

    void prepare(int parent, const listening_place& place, bool same_host) {
        parent_ = parent;
        port_ = place.port;
        if (same_host) addresses_.push_back(host_address::loopback());
        for (std::size_t i = 0; i < place.addresses && i < listening_place::most_addresses; ++i)
            addresses_.push_back(place.address[i]);
        if (!same_host || addresses_.empty()) addresses_.push_back(host_address::loopback());
    }

    // Tries the addresses one after another, again and again: the parent may not listen yet, and an
    // address may be that of a bridge that leads nowhere.
    void try_parent() {
        const host_address& to = addresses_[next_address_++ % addresses_.size()];
        tried_ = to.print();
        outgoing_ = {begin_connect(to, port_), nullptr, now()};
        if (!outgoing_.socket) rest_until_ = now() + 10 * tuning::millisecond;
    }
    void drop_outgoing(const char* why) {
        why_ = why;
        outgoing_ = {};
        rest_until_ = now() + 10 * tuning::millisecond;
    }
    void advance_outgoing() {
        if (!outgoing_.talk) {
            if (const int code = error_of(outgoing_.socket); code != 0)
                return drop_outgoing(strerror(code));
            outgoing_.talk = std::make_unique<handshake>(secret_, rank_, parent_);
        }
        switch (outgoing_.talk->advance(outgoing_.socket)) {
            case handshake::state::goes_on: return;
            case handshake::state::refused: return drop_outgoing(outgoing_.talk->reason());
            case handshake::state::done: break;
        }
        made_.push_back({parent_, std::move(outgoing_.socket)});
        outgoing_ = {};
        parent_ = -1;
    }

    // ---- from the children ----------------------------------------------------------------------

    void take_strangers() {
        while (descriptor socket = listener_.accept()) {
            if (strangers_.size() == most_strangers) strangers_.erase(strangers_.begin());
            strangers_.push_back(
                {std::move(socket), std::make_unique<handshake>(secret_, rank_, -1), now()});
        }
    }
    // True if it is no stranger any more.
    bool advance_stranger(attempt& a) {
        switch (a.talk->advance(a.socket)) {
            case handshake::state::goes_on: return now() - a.since > patience;
            case handshake::state::refused: return true;
            case handshake::state::done: break;
        }
        for (std::size_t i = 0; i < missing_.size(); ++i)
            if (missing_[i] == a.talk->peer()) {
                made_.push_back({missing_[i], std::move(a.socket)});
                missing_.erase(missing_.begin() + std::ptrdiff_t(i));
                break;
            }
        return true;
    }

    void turn(time_point limit) {
        if (parent_ >= 0 && !outgoing_.socket && now() >= rest_until_) try_parent();
        std::vector<pollfd> fds{{listener_.number(), POLLIN, 0}};
        if (outgoing_.socket)
            fds.push_back(
                {outgoing_.socket.number(),
                 short(!outgoing_.talk || outgoing_.talk->wants_to_write() ? POLLOUT : POLLIN), 0});
        for (const attempt& a : strangers_)
            fds.push_back(
                {a.socket.number(), short(a.talk->wants_to_write() ? POLLOUT : POLLIN), 0});
        const std::int64_t longest = parent_ >= 0 && !outgoing_.socket ? 10 : 100;
        const std::int64_t left = std::max<std::int64_t>((limit - now()) / tuning::millisecond, 0);
        ::poll(fds.data(), nfds_t(fds.size()), int(std::min(longest, left + 1)));
        if (outgoing_.socket && fds[1].revents != 0) advance_outgoing();
        else if (outgoing_.socket && now() - outgoing_.since > 2 * tuning::second)
            drop_outgoing("it does not answer");
        for (std::size_t i = strangers_.size(); i-- > 0;)
            if (advance_stranger(strangers_[i]))
                strangers_.erase(strangers_.begin() + std::ptrdiff_t(i));
        take_strangers();
    }

    [[noreturn]] void give_up() const {
        std::vector<int> late = missing_;
        message why("hvd: rank ");
        why += text(rank_, " waits in vain for a connection");
        if (parent_ >= 0) {
            late.push_back(parent_);
            why += text(" to rank ", parent_, " (port ", port_, " of ", tried_,
                        why_.empty() ? "" : ": ", why_, ")");
        }
        const char* before = parent_ >= 0 && !missing_.empty() ? ", and from rank " : " from rank ";
        for (const int child : missing_) {
            why += text(before, child);
            before = ", ";
        }
        throw peer_error(rank_, why, std::move(late));
    }

    int rank_;
    const shared_secret& secret_;
    const listening_socket& listener_;
    int parent_ = -1;
    std::uint16_t port_ = 0;
    std::vector<host_address> addresses_;
    std::size_t next_address_ = 0;
    message tried_, why_;
    time_point rest_until_ = 0;
    attempt outgoing_{};
    std::vector<attempt> strangers_;
    std::vector<int> missing_;
    std::vector<connection> made_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
