// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/lean/handles.hpp"
#include "../../platform/clock.hpp"
#include "frame_reader.hpp"
#include "frame_writer.hpp"
#include "host_silence.hpp"
#include "plain_wire.hpp"

namespace hvd::inline v0::detail {

// The messages of one rank of a communicator: a connection to every other rank, with data and
// notices. Memory of the caller is used without a copy, since a connection can be left in the
// middle of a message.
template <class Wire>
class basic_tcp_messages {
public:
    using wire = Wire;
    static constexpr std::string_view name = "hvd::tcp";  // a wire tells by itself if it encrypts

    basic_tcp_messages() = default;

    // One wire for each rank; none for this one.
    explicit basic_tcp_messages(std::vector<Wire> wires) : links_(wires.size()) {
        fds_.reserve(wires.size());
        ready_.reserve(wires.size());
        for (std::size_t p = 0; p < wires.size(); ++p) {
            links_[p].wire = std::move(wires[p]);
            if (!links_[p].wire) continue;
            links_[p].out.set_up();
            links_[p].in.set_up();
            const descriptor& socket = links_[p].wire.socket();
            links_[p].is_near = is_within_host(socket);
            tune_socket(socket);
            links_[p].is_near ? keep_within_host(socket) : keep_with_busy_peer(socket);
        }
    }

    void send(int peer, const std::byte* data, std::size_t bytes) {
        link& l = links_[std::size_t(peer)];
        l.out.add(data, bytes);
        l.push();
    }
    // As in frame_reader::add.
    void receive(int peer, std::byte* data, std::size_t bytes, std::size_t* size = nullptr) {
        links_[std::size_t(peer)].in.add(data, bytes, size);
        tries_all_ = true;
    }

    std::uint64_t sends_begun(int peer) const { return links_[std::size_t(peer)].out.begun(); }
    std::uint64_t receives_begun(int peer) const { return links_[std::size_t(peer)].in.begun(); }

    // Makes progress; true when all data has come or gone. Each link is tried once after a receive
    // has begun. Then the system says which of many can go on: to try each is a call of it.
    bool poll() {
        if (links_.size() <= most_tried || std::exchange(tries_all_, false)) {
            for (link& l : links_) l.go_on();
            knows_ready_ = false;
        } else {
            if (!std::exchange(knows_ready_, false)) ask_for_ready(0);
            for (const std::size_t p : ready_) links_[p].go_on();
        }
        bool complete = true;
        for (const link& l : links_) complete = complete && !l.is_pending();
        return complete;
    }
    bool pending(int peer) const { return links_[std::size_t(peer)].is_pending(); }

    // Sleeps until there may be progress, or some time has passed.
    void sleep(std::int64_t nanoseconds) {
        ask_for_ready(nanoseconds);
        knows_ready_ = true;
    }

    void cancel() noexcept {
        for (link& l : links_) {
            l.out.cancel();
            l.in.cancel();
        }
    }

    // False if the connection is over.
    bool send_notice(int peer, const failure_notice& notice) noexcept try {
        link& l = links_[std::size_t(peer)];
        l.out.add_notice(notice);
        l.push();
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }

    bool receive_notice(failure_notice& notice) {
        const bool asks = links_.size() > most_tried;
        if (asks) ask_for_news();
        for (std::size_t p = 0, i = 0; p < links_.size(); ++p) {
            link& l = links_[p];
            if (!l.wire) continue;
            const bool has_news = !asks || fds_[i++].revents != 0 || l.in.may_have_more();
            if (!has_news) continue;
            l.push();
            if (!l.in.take_notice(l.wire, notice)) continue;
            // One that no rank sends is dropped.
            if (is_notice(notice, int(links_.size())) && notice.sender == int(p)) return true;
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
            if (!l.wire) continue;
            l.push();
            if (!l.has_work() && !l.said_goodbye) l.said_goodbye = l.wire.end_writing();
            if (l.wire.drop_what_comes()) any = true;
            else l.wire = Wire();
        }
        return any;
    }
    // True if some notices have not gone.
    bool has_words() const noexcept {
        bool any = false;
        for (const link& l : links_) any = any || (l.wire && l.has_work());
        return any;
    }

protected:
    // The same for the ranks that awaits(rank) is true of.
    template <class F>
    std::vector<int> lost(message& why, F awaits) {
        std::vector<int> ranks;
        for (std::size_t p = 0; p < links_.size(); ++p) {
            link& l = links_[p];
            if (!l.wire || !awaits(int(p))) continue;
            // The end itself may lie behind much data that nobody asks for.
            const char* reason = l.in.has_ended()    ? l.in.reason()
                                 : l.out.is_broken() ? l.wire.why_closed()
                                                     : nullptr;
            if (reason == nullptr && !l.is_near && l.silence.look(l.wire.socket()))
                reason = "its host does not answer";
            if (l.silence.wants_probe()) l.out.add_probe();
            if (reason == nullptr) continue;
            why += text(ranks.empty() ? "" : ", ", "rank ", p, " is gone (", reason, ")");
            ranks.push_back(int(p));
        }
        return ranks;
    }
    int ranks() const { return int(links_.size()); }
    bool has_ended(int peer) const { return links_[std::size_t(peer)].has_ended(); }
    const descriptor& socket_of(int peer) const { return links_[std::size_t(peer)].wire.socket(); }
    // Something that lives as long as the connections.
    void keep(shared<counted> companion) { companion_ = std::move(companion); }

private:
    struct link {
        Wire wire;
        frame_writer out;
        frame_reader in;
        host_silence silence;
        bool said_goodbye = false;
        bool is_near = false;  // on this host, which is not silent while this process runs

        bool is_pending() const { return !in.is_idle() || !out.is_idle(); }
        bool has_ended() const { return in.has_ended() || out.is_broken(); }
        bool has_work() const { return out.has_work() || wire.has_unsent(); }
        void push() {
            if (out.has_work()) out.push(wire);
            else wire.flush();
        }
        void go_on() {
            push();
            if (!in.is_idle()) in.pull(wire);
        }
    };

    // So many links are tried rather than asked for.
    static constexpr std::size_t most_tried = 8;

    // Finds the links, all of them, that something has come on or that can send what they have.
    void ask_for_news() {
        fds_.clear();
        for (const link& l : links_)
            if (l.wire)
                fds_.push_back({l.in.has_ended() ? -1 : l.wire.socket().number(),
                                l.wire.events(true, l.has_work()), 0});
        poll_sockets(fds_.data(), fds_.size(), 0);
        knows_ready_ = false;
    }

    // Finds the links that have something to do and can, or waits for one.
    void ask_for_ready(std::int64_t nanoseconds) {
        fds_.clear();
        ready_.clear();
        for (std::size_t p = 0; p < links_.size(); ++p) {
            const link& l = links_[p];
            const bool reads = !l.in.is_idle(), writes = l.has_work();
            if ((!reads && !writes) || l.in.has_ended()) continue;
            fds_.push_back({l.wire.socket().number(), l.wire.events(reads, writes), 0});
            ready_.push_back(p);
        }
        poll_sockets(fds_.data(), fds_.size(), nanoseconds);
        std::size_t kept = 0;
        for (std::size_t i = 0; i < ready_.size(); ++i)
            if (fds_[i].revents != 0 || links_[ready_[i]].in.may_have_more())
                ready_[kept++] = ready_[i];
        ready_.resize(kept);
    }

    std::vector<link> links_;  // by rank
    std::vector<pollfd> fds_;
    std::vector<std::size_t> ready_;
    bool knows_ready_ = false;  // from a sleep
    bool tries_all_ = true;
    shared<counted> companion_;
};

using tcp_messages = basic_tcp_messages<plain_wire>;

}  // namespace hvd::inline v0::detail
