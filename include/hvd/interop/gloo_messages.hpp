// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "gloo_pairs.hpp"

#include "../transport/frames/tcp_messages.hpp"
#include "../transport/message_memory.hpp"

namespace hvd::inline v0::detail {

// The messages of one rank of a communicator whose data goes by Gloo if it has several nodes.
// Notices, and the loss of a rank or of a host, come by hvd's own connections.
class gloo_messages : public tcp_messages {
public:
    using library = gloo_pairs;
    static constexpr std::string_view name = "hvd::gloo";
    using tcp_messages::tcp_messages;

    static bool needs_library(const std::vector<int>& nodes) {
        for (const int node : nodes)
            if (node != nodes[0]) return true;
        return false;
    }

    // An address of this host by which others reach it: that of hvd's connections, and one of
    // another host's if there are some.
    message own_address() const {
        message found("127.0.0.1");
        bool is_v4 = false;
        for (int p = 0; p < ranks(); ++p) {
            const host_address a = address_of(socket_of(p));
            if (!socket_of(p) || a.is_loopback() || is_v4) continue;
            found = a.scope != 0 ? text(a.print(), "%", a.scope) : a.print();
            is_v4 = a.is_v6 == 0;
        }
        return found;
    }

    // From here on data goes by Gloo, on all ranks. The pairs live as long as the connections.
    void use(shared<gloo_pairs> pairs) {
        keep(pairs);
        pairs_ = std::move(pairs);
        peers_.resize(std::size_t(ranks()));
    }
    // poll() says when that is done.
    void connect_library(std::vector<gloo_place> peers) { pairs_->connect(std::move(peers)); }

    void send(int peer, const std::byte* data, std::size_t bytes) {
        if (pairs_) pairs_->send(peer, data, bytes);
        else tcp_messages::send(peer, data, bytes);
    }
    // Gloo does not tell the size of a message.
    void receive(int peer, std::byte* data, std::size_t bytes, std::size_t* size = nullptr) {
        if (!pairs_) return tcp_messages::receive(peer, data, bytes, size);
        pairs_->receive(peer, data, bytes);
        if (size != nullptr) *size = unknown_size;
    }
    std::uint64_t sends_begun(int peer) const {
        return tcp_messages::sends_begun(peer) + (pairs_ ? pairs_->sends_begun(peer) : 0);
    }
    std::uint64_t receives_begun(int peer) const {
        return tcp_messages::receives_begun(peer) + (pairs_ ? pairs_->receives_begun(peer) : 0);
    }

    bool poll() { return pairs_ ? pairs_->poll() : tcp_messages::poll(); }
    bool pending(int peer) const {
        return pairs_ ? pairs_->pending(peer) : tcp_messages::pending(peer);
    }
    void sleep(std::int64_t nanoseconds) {
        if (pairs_) pairs_->sleep(nanoseconds);
        else tcp_messages::sleep(nanoseconds);
    }
    void cancel() noexcept {
        tcp_messages::cancel();
        if (pairs_) pairs_->cancel();
    }

    bool receive_notice(failure_notice& notice) {
        if (!tcp_messages::receive_notice(notice)) return false;
        if (pairs_ && notice.what == word::departs)
            peers_[std::size_t(notice.sender)].departed = true;
        return true;
    }

    // A rank is lost when hvd's connection and its pair have ended: data may come by the pair after
    // the end of the connection, and the reason by the connection after the end of the pair. One
    // end alone counts after a while, since Gloo misses some. A rank that has departed ends its
    // connection, and its data still comes.
    std::vector<int> lost(message& why) {
        std::vector<int> ranks = tcp_messages::lost(
            why, [this](int p) { return pending(p) && (!pairs_ || !has_ended(p) || is_lost(p)); });
        for (int p = 0; pairs_ && ranks.empty() && p < int(peers_.size()); ++p) {
            const std::string_view failure = pairs_->failure(p);
            if (failure.empty() || !has_waited(p)) continue;
            why += text("rank ", p, " is gone (Gloo: ", failure, ")");
            ranks.push_back(p);
        }
        return ranks;
    }

private:
    struct peer {
        bool departed = false;
        time_point ended_since = 0;  // hvd's connection or the pair
    };

    bool is_lost(int p) {
        return pairs_->is_connecting() || !pairs_->failure(p).empty() ||
               (!peers_[std::size_t(p)].departed && has_waited(p));
    }
    bool has_waited(int p) {
        time_point& since = peers_[std::size_t(p)].ended_since;
        if (since == 0) since = now();
        return now() - since > tuning::host_patience;
    }

    shared<gloo_pairs> pairs_;
    std::vector<peer> peers_;  // by rank
};

}  // namespace hvd::inline v0::detail
