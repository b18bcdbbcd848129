// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/network/wake_up.hpp"
#include "pending_connections.hpp"
#include "rendezvous_messages.hpp"

namespace hvd::inline v0::detail {

// Sends the same to all, until all have it, or none has taken any of it for so long.
inline void send_while_taken(std::span<framed_socket* const> links,
                             std::span<const std::byte> bytes,
                             std::int64_t patience = 5 * tuning::second) {
    for (framed_socket* link : links) link->queue(bytes);
    for (watched_time nobody_took; nobody_took.look() < patience;) {
        std::vector<pollfd> fds;
        for (framed_socket* link : links) {
            link->flush();
            if (link->is_open() && link->wants_to_write())
                fds.push_back({link->number(), POLLOUT, 0});
        }
        if (fds.empty()) return;
        if (::poll(fds.data(), nfds_t(fds.size()), 100) > 0) nobody_took = watched_time();
    }
}

// The place where the ranks of a job find each other. Every rank proves that it knows the secret
// and tells where it listens. When all have come, each gets the places of all. One thread serves; a
// peer that proves nothing gets a buffer of fixed size, and is dropped after some seconds.
//
// All ranks get the table, or all that have come get the reason why not.
class rendezvous_server {
public:
    // With a timeout of 0 it waits without a limit. @throws usage_error if the port is taken, or
    // there is no job of that size.
    // `rank` is that of the process that serves, -1 for a launcher. It listens `at` some addresses.
    rendezvous_server(std::uint16_t port, int size, const shared_secret& secret, time_limit timeout,
                      int rank = -1, std::span<const host_address> at = {})
        : secret_(secret),
          timeout_(timeout),
          listener_(rank, port, at),
          wake_(-1),
          arriving_(secret_, rendezvous_rank, size),
          places_(std::size_t(size > 0 ? size : 0)),
          has_come_(places_.size(), false) {
        if (size < 1)
            throw usage_error(-1,
                              text("hvd: a rendezvous for ", size, " ranks; it takes 1 or more"));
    }
    rendezvous_server(const rendezvous_server&) = delete;
    rendezvous_server& operator=(const rendezvous_server&) = delete;

    std::uint16_t port() const noexcept { return listener_.port(); }

    // Returns true when all ranks have got the table, false after stop().
    // @throws peer_error naming the ranks that have not come in time, or whose registration does
    // not fit; usage_error if the system fails.
    bool serve() try {
        const time_point limit = limit_of(timeout_);
        while (come_ < places_.size()) {
            if (stopped_.load()) {
                refuse_all("it was stopped");
                return false;
            }
            if (now() > limit) give_up_waiting();
            turn(limit);
            look_after_members();
        }
        send_table();
        return true;
    } catch (const usage_error& e) {
        refuse_all(e.what());
        throw;
    }

    // Ends serve(), from any thread.
    void stop() noexcept {
        stopped_.store(true);
        wake_.wake();
    }

private:
    // The time in which a rank registers that has proved itself.
    static constexpr std::int64_t patience = 5 * tuning::second;

    struct member {
        framed_socket link;
        watched_time watched{};
        bool registered = false;
    };

    void turn(time_point limit) {
        fds_.clear();
        fds_.push_back({wake_.number(), POLLIN, 0});
        listener_.add_to(fds_);
        arriving_.add_to(fds_);
        for (const member& m : members_) fds_.push_back({m.link.number(), POLLIN, 0});
        const std::int64_t left = (limit - now()) / tuning::millisecond + 1;
        ::poll(fds_.data(), nfds_t(fds_.size()), int(left < 100 ? (left > 0 ? left : 0) : 100));
        arriving_.advance(listener_, [this](int peer, std::uint64_t, descriptor socket) {
            members_.push_back({framed_socket(peer, std::move(socket), sizeof(registration))});
        });
    }

    // ---- those that know the secret -------------------------------------------------------------

    void look_after_members() {
        for (member& m : members_) {
            m.link.fill();
            std::span<const std::byte> bytes;
            if (!m.registered && m.link.next(bytes)) take(m, bytes);
            if (!m.link.is_open())
                fail(text("rank ", m.link.peer(), " left before all had come (", m.link.reason(),
                          ")"),
                     m.link.peer());
            if (!m.registered && m.watched.look() > patience)
                fail(text("rank ", m.link.peer(), " does not register"), m.link.peer());
        }
    }

    void take(member& m, std::span<const std::byte> bytes) {
        const int rank = m.link.peer(), size = int(places_.size());
        registration r;
        if (bytes.size() == sizeof r) std::memcpy(&r, bytes.data(), sizeof r);
        if (bytes.size() != sizeof r || r.version != registration::current)
            fail(text("rank ", rank,
                      " speaks another version of the protocol: its program and those of the "
                      "others, and hvdrun, must be of one version of hvd"),
                 rank);
        if (r.size != size)
            fail(
                text("rank ", rank, " says that the job has ", r.size, " ranks, and it has ", size),
                rank);
        if (rank >= size)
            fail(text("rank ", rank, " is no rank of a job of ", size, " ranks"), rank);
        if (has_come_[std::size_t(rank)])
            fail(text("two processes say that they are rank ", rank), rank);
        has_come_[std::size_t(rank)] = m.registered = true;
        places_[std::size_t(rank)] = r.place;
        ++come_;
    }

    void send_table() {
        rendezvous_answer head;
        head.accepted = 1;
        head.size = std::uint32_t(places_.size());
        fill_random(-1, reinterpret_cast<std::byte*>(&head.job), sizeof head.job);
        std::vector<std::byte> bytes;
        for (const std::byte b : wire_bytes(head)) bytes.push_back(b);
        for (const listening_place& place : places_)
            bytes.insert(bytes.end(), wire_bytes(place).begin(), wire_bytes(place).end());
        send_to_all(bytes);
    }

    void refuse_all(std::string_view why, bool timed_out = false) {
        rendezvous_answer head;
        head.timed_out = timed_out ? 1 : 0;
        std::vector<std::byte> bytes(wire_bytes(head).begin(), wire_bytes(head).end());
        for (const char c : why.substr(0, rendezvous_answer::most_reason))
            bytes.push_back(std::byte(c));
        send_to_all(bytes);
    }

    void send_to_all(std::span<const std::byte> bytes) {
        std::vector<framed_socket*> links;
        for (member& m : members_) links.push_back(&m.link);
        send_while_taken(links, bytes);
        members_.clear();
    }

    // ---- failures -------------------------------------------------------------------------------

    [[noreturn]] void fail(const message& why, int rank) {
        refuse_all(why);
        throw peer_error(-1, text("hvd: the rendezvous failed: ", why), {rank});
    }

    [[noreturn]] void give_up_waiting() {
        std::vector<int> late;
        message names;
        for (std::size_t r = 0; r < has_come_.size(); ++r) {
            if (has_come_[r]) continue;
            names += text(late.empty() ? "rank " : ", rank ", r);
            late.push_back(int(r));
        }
        message why = text(names, " of ", places_.size(), " did not come in time");
        why += arriving_.print_refused();
        refuse_all(why, true);
        throw timeout_error(-1, text("hvd: the rendezvous failed: ", why), std::move(late));
    }

    const shared_secret secret_;
    const time_limit timeout_;
    listening_socket listener_;
    wake_up wake_;
    atomic<bool> stopped_{false};
    pending_connections arriving_;
    std::vector<member> members_;
    std::vector<listening_place> places_;  // by rank
    std::vector<bool> has_come_;
    std::size_t come_ = 0;
    std::vector<pollfd> fds_;
};

}  // namespace hvd::inline v0::detail
