// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <memory>

#include <sys/resource.h>

#include "../../platform/clock.hpp"
#include "handshake.hpp"

namespace hvd::inline v0::detail {

// Connections that have come to a listening socket and have not proved yet that they belong to the
// job. Each has a buffer of fixed size. It is dropped if it says nothing for some seconds in which
// this process looks; the oldest is dropped if there are too many, or this process needs their
// descriptors.
class pending_connections {
public:
    // So many ranks may come at once, and each may say nothing for so long.
    pending_connections(const shared_secret& secret, int me, int ranks = 0,
                        std::int64_t patience = 5 * tuning::second)
        : secret_(secret), me_(me), ranks_(ranks), patience_(patience) {}

    void add_to(std::vector<pollfd>& fds) const {
        for (const pending_connection& s : list_)
            fds.push_back(
                {s.socket.number(), short(s.talk->wants_to_write() ? POLLOUT : POLLIN), 0});
    }

    // Goes on with all that have come. let_in(peer, context, socket) takes those that have proved
    // themselves. It may take the secret of the connection as well: see handshake.
    template <class F>
    void advance(const listening_socket& listener, F let_in) {
        watched_for_ = watched_.look();
        take_from(listener);
        ask();
        for (std::size_t i = list_.size(); i-- > 0;) {
            pending_connection& s = list_[i];
            switch (fds_[i].revents != 0 ? s.talk->advance(s.socket) : handshake::state::goes_on) {
                case handshake::state::goes_on:
                    if (watched_for_ - s.since <= patience_) continue;
                    note_refused("it said nothing");
                    break;
                case handshake::state::refused: note_refused(s.talk->reason()); break;
                case handshake::state::done:
                    if constexpr (std::is_invocable_v<F&, int, std::uint64_t, descriptor,
                                                      const shared_secret&>)
                        let_in(s.talk->peer(), s.talk->context(), std::move(s.socket),
                               s.talk->connection_key());
                    else let_in(s.talk->peer(), s.talk->context(), std::move(s.socket));
                    break;
            }
            list_.erase(list_.begin() + std::ptrdiff_t(i));
        }
    }

    // Says how many were refused, for an error; empty if none was.
    message print_refused() const {
        if (refused_ == 0) return {};
        return text(" (", refused_, refused_ == 1 ? " connection was" : " connections were",
                    " refused, the last one because ", why_refused_, ")");
    }

private:
    // A rank of this job needs less to prove itself.
    static constexpr std::int64_t patience_when_full = tuning::second;
    // They have an eighth of the descriptors of a process at most. It may have several such lists.
    std::size_t most() const {
        rlimit limit{};
        if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 4;
        const rlim_t wanted = ranks_ > 256 ? rlim_t(ranks_) : 256;
        return std::size_t(std::clamp<rlim_t>(limit.rlim_cur / 8, 4, wanted));
    }

    // Finds those that can go on: to try each is a call of the system.
    void ask() {
        fds_.clear();
        add_to(fds_);
        ::poll(fds_.data(), nfds_t(fds_.size()), 0);
    }

    struct pending_connection {
        descriptor socket;
        std::unique_ptr<handshake> talk;
        std::int64_t since;  // of watched_for_
    };

    void take_from(const listening_socket& listener) {
        for (std::size_t room = most(), turns = 2 * room; turns > 0; --turns) {
            if (descriptor socket = listener.accept()) {
                while (list_.size() >= room) drop_oldest("too many came at once");
                list_.push_back({std::move(socket), std::make_unique<handshake>(secret_, me_, -1),
                                 watched_for_});
            } else if (!is_out_of_descriptors(errno)) {
                return;
            } else if (list_.empty()) {
                throw_system(me_, "accept", errno);
            } else if (watched_for_ - list_.front().since > patience_when_full) {
                drop_oldest("this process has no descriptors left");
            } else {
                return;
            }
        }
    }
    void drop_oldest(const char* why) {
        list_.erase(list_.begin());
        note_refused(why);
    }
    void note_refused(const char* why) {
        ++refused_;
        why_refused_ = why;
    }

    const shared_secret& secret_;
    int me_, ranks_;
    std::int64_t patience_;
    watched_time watched_;
    std::int64_t watched_for_ = 0;
    std::vector<pending_connection> list_;
    std::vector<pollfd> fds_;
    int refused_ = 0;
    const char* why_refused_ = "";
};

}  // namespace hvd::inline v0::detail
