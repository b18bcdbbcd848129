// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "../comm/communicator.hpp"
#include "../execution/meet_on_all.hpp"
#include "../platform/host_identity.hpp"
#include "../platform/network/wake_up.hpp"
#include "../transport/tcp/framed_socket.hpp"
#include "../transport/tcp/launcher_variables.hpp"
#include "../transport/tcp/meeting.hpp"
#include "../transport/tcp/own_place.hpp"
#include "negotiation/negotiator.hpp"

namespace hvd::inline v0::detail {

struct link_options {
    int fanout = 8;
    time_limit timeout{};
};

// The time in which the ranks of a new engine find each other.
inline time_span start_timeout_of(const session& ranks) {
    return time_span::of_nanoseconds(
        std::max(tuning::engine_start_timeout, ranks.options().timeout.time().nanoseconds));
}

template <class Comm>
link_options links_of(Comm& comm) {
    const session& ranks = access::session_of(comm);
    return {.fanout = int(ranks.options().tuning.unstable.fanout),
            .timeout = start_timeout_of(ranks)};
}

// The connections of a rank to its parent and its children in the tree of an engine's ranks. They
// are apart from the communicator, so that a rank can sleep until somebody has something to say,
// and learns at once if a neighbour dies. One thread uses it; any thread calls `wake`.
class link_tree {
public:
    struct received {
        int from = -1;
        std::span<const std::byte> bytes;  // valid until the next `wait`
    };
    struct lost {
        int neighbour = -1;
        std::string reason;
    };

    // **Collective**. All ranks get their connections, or all throw.
    template <class Comm>
    link_tree(Comm& comm, const link_options& options) : fanout_(options.fanout) {
        const int me = comm.rank(), size = comm.size();
        if (size == 1) {
            wake_.emplace(me);
            return;
        }
        shared_secret secret{};
        if (me == 0) fill_random(me, secret.data(), secret.size());
        comm.broadcast(secret, hvd::root{0}, {.name = "secret of an engine", .confirm = true});
        session& own = access::session_of(comm);
        const time_point limit = limit_of(options.timeout);
        const bool is_one = see_one_network(own, limit);
        std::unique_ptr<listening_socket> listener;
        listening_place mine;
        run_on_all(own, "the sockets of an engine", limit, [&] {
            wake_.emplace(me);
            // Ranks of one network need no variable.
            const auto o = is_one ? tcp_options() : launched_options<tcp_options>();
            listener = std::make_unique<listening_socket>(me, 0, addresses_for_ranks(o, is_one));
            mine = known_place_of(o, listener->port(), is_one);
        });
        const std::vector<listening_place> places = gather_places(comm, mine);
        // A rank that gives up at the limit still tells the others why.
        const time_point told = limit == never ? never : limit + tuning::second;
        const char* const name = "the connections of an engine";
        meet_on_all(own, name, told, own.next_context(), [&](const auto& gone) {
            const int parent = parent_of(me, options.fanout);
            std::vector<int> children;
            for (int c = me * options.fanout + 1;
                 c <= me * options.fanout + options.fanout && c < size; ++c)
                children.push_back(c);
            const listening_place& to = places[std::size_t(parent < 0 ? 0 : parent)];
            meeting talks(me, secret, *listener);
            for (auto& c : talks.run(parent, to, to.host == mine.host, children, limit, gone))
                links_.emplace(c.peer, framed_socket(c.peer, std::move(c.socket)));
        });
    }
    link_tree(const link_tree&) = delete;
    link_tree& operator=(const link_tree&) = delete;

    // The children of a rank in the tree.
    int fanout() const { return fanout_; }

    // The message goes with the next `flush` or `wait`.
    void send(int neighbour, std::span<const std::byte> bytes) {
        if (const auto found = links_.find(neighbour); found != links_.end())
            found->second.queue(bytes);
    }

    // Writes what was sent, as far as the system takes it at once.
    void flush() {
        for (auto& [peer, link] : links_) link.flush();
    }

    // Sleeps until something has come, somebody calls `wake`, or the time is over. It writes what
    // was sent meanwhile.
    void wait(std::int64_t nanoseconds) {
        flush();
        fds_.clear();
        fds_.push_back({wake_->number(), POLLIN, 0});
        for (const auto& [peer, link] : links_)
            if (link.is_open())
                fds_.push_back(
                    {link.number(), short(link.wants_to_write() ? POLLIN | POLLOUT : POLLIN), 0});
        const bool lost_one = fds_.size() <= links_.size();  // `next_lost` has not told it yet
        poll_sockets(fds_.data(), fds_.size(), lost_one ? 0 : nanoseconds);
        if (fds_[0].revents != 0) wake_->take();
        std::size_t i = 1;
        for (auto& [peer, link] : links_) {
            if (!link.is_open()) continue;
            const short events = fds_[i++].revents;
            if ((events & POLLOUT) != 0) link.flush();
            if ((events & ~POLLOUT) != 0) link.fill();
        }
        next_ = links_.begin();
    }

    bool next(received& r) {
        for (; next_ != links_.end(); ++next_)
            if (next_->second.next(r.bytes)) {
                r.from = next_->first;
                return true;
            }
        return false;
    }

    // Told once for each neighbour.
    bool next_lost(lost& l) {
        for (auto at = links_.begin(); at != links_.end(); ++at)
            if (!at->second.is_open()) {
                l = {at->first, at->second.reason()};
                links_.erase(at);
                next_ = links_.end();
                return true;
            }
        return false;
    }

    // Tells all neighbours why this rank ends, where their links take it at once. It needs no
    // memory.
    void send_last(std::span<const std::byte> bytes) noexcept {
        for (auto& [peer, link] : links_) link.send_last(bytes);
    }

    void wake() noexcept { wake_->wake(); }

    // Closes the connections, after what was sent has gone as far as the system takes it at once.
    void close() noexcept {
        flush();
        links_.clear();
        next_ = links_.end();
    }

private:
    // They reach each other by the loopback address.
    static bool see_one_network(session& ranks, time_point limit) {
        const auto mine = std::int64_t(network_identity());
        const auto all = numbers_of_all(ranks, "the networks of an engine", {&mine, 1}, limit);
        return mine != 0 &&
               std::ranges::all_of(all, [&](std::int64_t other) { return other == mine; });
    }
    template <class Comm>
    static std::vector<listening_place> gather_places(Comm& comm, const listening_place& mine) {
        std::vector<std::uint8_t> bytes(sizeof mine);
        std::memcpy(bytes.data(), &mine, sizeof mine);
        const auto all = comm.allgather(bytes, {.name = "addresses of an engine"});
        std::vector<listening_place> places(std::size_t(comm.size()));
        std::memcpy(places.data(), all.values.data(), places.size() * sizeof mine);
        return places;
    }

    const int fanout_;
    std::optional<wake_up> wake_;
    std::map<int, framed_socket> links_;
    std::map<int, framed_socket>::iterator next_ = links_.end();
    std::vector<pollfd> fds_;
};

}  // namespace hvd::inline v0::detail
