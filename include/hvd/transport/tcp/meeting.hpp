// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>

#include "outgoing_connection.hpp"
#include "pending_connections.hpp"

namespace hvd::inline v0::detail {

// Brings the connections of one rank about: one to `parent` (-1: none), and one from each of
// `children`. Each is authenticated. Others that connect meanwhile are refused and do no harm.
class meeting {
public:
    meeting(int rank, const shared_secret& secret, const listening_socket& socket)
        : rank_(rank), secret_(secret), listener_(socket), arriving_(secret, rank) {}

    struct connection {
        int peer;
        descriptor socket;
    };

    // @throws peer_error naming the ranks that have not come before the limit, or when one is gone.
    template <class F>
    std::vector<connection> run(int parent, const listening_place& place, bool same_host,
                                std::vector<int> children, time_point limit, const F& gone) {
        missing_ = std::move(children);
        if (parent >= 0)
            to_parent_ =
                std::make_unique<outgoing_connection>(secret_, rank_, parent, place, same_host);
        while (to_parent_ || !missing_.empty()) {
            if (const bool timed_out = now() > limit; timed_out || gone()) give_up(timed_out);
            turn(limit);
        }
        return std::move(made_);
    }

private:
    // Takes a child that is awaited. Others are closed.
    void let_in(int peer, descriptor socket) {
        for (std::size_t i = 0; i < missing_.size(); ++i)
            if (missing_[i] == peer) {
                made_.push_back({peer, std::move(socket)});
                missing_.erase(missing_.begin() + std::ptrdiff_t(i));
                return;
            }
    }

    void turn(time_point limit) {
        std::vector<pollfd> fds;
        pollfd parent{};
        const bool tries = to_parent_ && to_parent_->prepare(parent);
        if (tries) fds.push_back(parent);
        listener_.add_to(fds);
        arriving_.add_to(fds);
        const std::int64_t longest = to_parent_ && !tries ? 10 : 100;
        const std::int64_t left = std::max<std::int64_t>((limit - now()) / tuning::millisecond, 0);
        ::poll(fds.data(), nfds_t(fds.size()), int(std::min(longest, left + 1)));
        if (tries && to_parent_->advance(fds[0].revents != 0)) {
            made_.push_back({to_parent_->peer(), to_parent_->take()});
            to_parent_.reset();
        }
        arriving_.advance(listener_, [this](int peer, std::uint64_t, descriptor socket) {
            let_in(peer, std::move(socket));
        });
    }

    [[noreturn]] void give_up(bool timed_out) const {
        std::vector<int> late = missing_;
        message why("hvd: rank ");
        why += text(rank_, " waits in vain for a connection");
        if (to_parent_) {
            late.push_back(to_parent_->peer());
            why += text(" to rank ", to_parent_->peer(), " (", to_parent_->print(), ")");
        }
        const char* before = to_parent_ && !missing_.empty() ? ", and from rank " : " from rank ";
        for (const int child : missing_) {
            why += text(before, child);
            before = ", ";
        }
        throw_peer_error(timed_out, rank_, why, std::move(late));
    }

    int rank_;
    const shared_secret& secret_;
    const listening_socket& listener_;
    std::unique_ptr<outgoing_connection> to_parent_;
    pending_connections arriving_;
    std::vector<int> missing_;
    std::vector<connection> made_;
};

}  // namespace hvd::inline v0::detail
