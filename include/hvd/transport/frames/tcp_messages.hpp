// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/lean/handles.hpp"
#include "../../platform/clock.hpp"
#include "frame_reader.hpp"
#include "frame_writer.hpp"
#include "host_silence.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The messages of one rank of a communicator: a connection to every other rank, with data and
// notices. Memory of the caller is used without a copy, since a connection can be left in the
// middle of a message.
class tcp_messages {
public:
    tcp_messages() = default;

    // One socket for each rank; none for this one.
    explicit tcp_messages(std::vector<descriptor> sockets) : links_(sockets.size()) {
        for (std::size_t p = 0; p < sockets.size(); ++p) {
            links_[p].socket = std::move(sockets[p]);
            if (!links_[p].socket) continue;
            tune_socket(links_[p].socket);
            keep_with_busy_peer(links_[p].socket);
        }
    }

    void send(int peer, const std::byte* data, std::size_t bytes) {
        link& l = links_[std::size_t(peer)];
        l.out.add(data, bytes);
        l.out.push(l.socket);
    }
    void receive(int peer, std::byte* data, std::size_t bytes) {
        links_[std::size_t(peer)].in.add(data, bytes);
    }

    std::uint64_t sends_begun(int peer) const { return links_[std::size_t(peer)].out.begun(); }
    std::uint64_t receives_begun(int peer) const { return links_[std::size_t(peer)].in.begun(); }

    // Makes progress; true when all data has come or gone.
    bool poll() {
        bool complete = true;
        for (link& l : links_) {
            if (l.out.has_work()) l.out.push(l.socket);
            if (!l.in.is_idle()) l.in.pull(l.socket);
            complete = complete && !l.is_pending();
        }
        return complete;
    }
    bool pending(int peer) const { return links_[std::size_t(peer)].is_pending(); }

    // Sleeps until there may be progress, or some time has passed.
    void sleep(std::int64_t nanoseconds) {
        fds_.clear();
        for (const link& l : links_) {
            const int events = (l.in.is_idle() ? 0 : POLLIN) | (l.out.has_work() ? POLLOUT : 0);
            if (events != 0 && !l.in.has_ended())
                fds_.push_back({l.socket.number(), short(events), 0});
        }
        poll_sockets(fds_.data(), fds_.size(), nanoseconds);
    }

    void cancel() noexcept {
        for (link& l : links_) {
            l.out.cancel();
            l.in.cancel();
        }
    }

    // False if the connection is over.
    bool send_notice(int peer, const failure_notice& news) noexcept try {
        link& l = links_[std::size_t(peer)];
        l.out.add_notice(news);
        l.out.push(l.socket);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }

    bool receive_notice(failure_notice& news) {
        for (std::size_t p = 0; p < links_.size(); ++p) {
            link& l = links_[p];
            if (!l.socket) continue;
            if (l.out.has_work()) l.out.push(l.socket);
            if (!l.in.take_notice(l.socket, news)) continue;
            if (news.sender == int(p) && names_ranks_of(news, int(links_.size()))) return true;
        }
        return false;
    }

    // The ranks that messages are under way with, and whose connection is over or whose host is
    // silent. `why` gets a text for an error.
    std::vector<int> lost(message& why) {
        return lost(why, [this](int p) { return pending(p); });
    }

    // Ends the connections in order: sends the last notices, says that nothing follows, and drops
    // what comes until the peers have ended theirs. A connection that is closed before would lose
    // what the peer has not read. False when all is over. Called again and again.
    bool say_goodbye() noexcept {
        bool any = false;
        for (link& l : links_) {
            if (!l.socket) continue;
            if (l.out.has_work()) l.out.push(l.socket);
            if (!l.out.has_work() && !std::exchange(l.said_goodbye, true))
                ::shutdown(l.socket.number(), SHUT_WR);
            if (drop_what_comes(l.socket)) any = true;
            else l.socket = descriptor();
        }
        return any;
    }
    // True if some notices have not gone.
    bool has_words() const noexcept {
        bool any = false;
        for (const link& l : links_) any = any || (l.socket && l.out.has_work());
        return any;
    }

protected:
    // The same for the ranks that awaits(rank) is true of.
    template <class F>
    std::vector<int> lost(message& why, F awaits) {
        std::vector<int> ranks;
        for (std::size_t p = 0; p < links_.size(); ++p) {
            link& l = links_[p];
            if (!l.socket || !awaits(int(p))) continue;
            // The end itself may lie behind much data that nobody asks for.
            const char* reason = l.in.has_ended()    ? l.in.reason()
                                 : l.out.is_broken() ? "its connection was closed"
                                                     : nullptr;
            if (reason == nullptr && l.silence.look(l.socket)) reason = "its host does not answer";
            if (l.silence.wants_probe()) l.out.add_probe();
            if (reason == nullptr) continue;
            why += text(ranks.empty() ? "" : ", ", "rank ", p, " is gone (", reason, ")");
            ranks.push_back(int(p));
        }
        return ranks;
    }
    int ranks() const { return int(links_.size()); }
    bool has_ended(int peer) const { return links_[std::size_t(peer)].has_ended(); }
    const descriptor& socket_of(int peer) const { return links_[std::size_t(peer)].socket; }
    // Something that lives as long as the connections.
    void keep(shared<counted> companion) { companion_ = std::move(companion); }

private:
    struct link {
        descriptor socket;
        frame_writer out;
        frame_reader in;
        host_silence silence;
        bool said_goodbye = false;

        bool is_pending() const { return !in.is_idle() || !out.is_idle(); }
        bool has_ended() const { return in.has_ended() || out.is_broken(); }
    };

    // False for a notice that no rank sends, which is dropped.
    static bool names_ranks_of(const failure_notice& news, int size) {
        bool known =
            news.what == word::departs || news.what == word::failed || news.what == word::waits;
        for (const int rank : news.ranks) known = known && rank < size;
        return known;
    }
    // False when the peer has ended the connection.
    static bool drop_what_comes(const descriptor& socket) noexcept {
        std::byte dropped[4096];
        for (int turns = 64; turns > 0; --turns) {
            const ssize_t n = ::recv(socket.number(), dropped, sizeof dropped, 0);
            if (n == 0) return false;
            if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
        }
        return true;
    }

    std::vector<link> links_;  // by rank
    std::vector<pollfd> fds_;
    shared<counted> companion_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
