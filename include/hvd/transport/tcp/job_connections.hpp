// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <exception>

#include "../../core/lean/atomic.hpp"
#include "../../platform/thread.hpp"
#include "../../protocol/failure_notice.hpp"
#include "../frames/frame.hpp"
#include "job_secret.hpp"
#include "outgoing_connection.hpp"
#include "pending_connections.hpp"
#include "rendezvous_client.hpp"

namespace hvd::inline v0::detail {

// Makes the connections of one process of a job, which knows where all others listen. Each
// communicator has connections of its own, under a number (its context) that its ranks know
// without a word. Several threads may make communicators at the same time: a connection that one
// of them lets in for another waits for it here.
class job_connections {
public:
    job_connections(int rank, const shared_secret& secret, listening_socket listener,
                    std::vector<listening_place> places)
        : rank_(rank),
          secret_(secret),
          listener_(std::move(listener)),
          places_(std::move(places)),
          arriving_(secret_, rank, int(places_.size())) {
        keep_spare();
        if (!spare_) throw_system(rank, "fcntl", errno);
    }
    job_connections(const job_connections&) = delete;
    job_connections& operator=(const job_connections&) = delete;

    const std::vector<listening_place>& places() const { return places_; }

    // The higher one of two ranks connects.
    bool connects_to(int rank) const { return rank < rank_; }
    // A secret of this job for the connection with that rank, and for no other connection.
    shared_secret secret_with(int rank, std::uint64_t context) const {
        const int connecting = connects_to(rank) ? rank_ : rank;
        return connection_secret(secret_, connecting, rank_ + rank - connecting, context);
    }

    // Returns a connection to each of `ranks` of the job, in their order, and none for this rank.
    // gone() ends it early. Where this process has no descriptor left, it waits as long as
    // gets_more() is true. Then it throws on all ranks: with `tells_peers` it tells those that have
    // come or come yet, and without somebody else does.
    // @throws peer_error that names the ranks by their place in `ranks`; usage_error if the system
    // refuses.
    template <class F, class G>
    std::vector<descriptor> connect(std::uint64_t context, std::span<const int> ranks,
                                    time_point limit, bool tells_peers, F gone, G gets_more) {
        making m{context,
                 ranks,
                 std::vector<descriptor>(ranks.size()),
                 std::vector<bool>(ranks.size()),
                 {}};
        for (const int r : ranks)
            if (connects_to(r))
                m.outgoing.emplace_back(secret_, rank_, r, places_[std::size_t(r)], is_here(r),
                                        context);
        const counts_as_active active(active_);
        while (!is_complete(m)) {
            if (m.closed_by >= 0 && tells_peers && !gone())
                tell_all(m, m.why, soonest(limit, now() + patience_with_told), gone);
            const bool timed_out = m.closed_by < 0 && now() > limit;
            if (timed_out || m.closed_by >= 0 || gone()) give_up(m, timed_out);
            try {
                turn(m);
                look_for_farewells(m);
                m.refused_since = never;
            } catch (const usage_error& e) {
                if (!is_refused_for_good(m, gets_more)) continue;
                m.closed_by = place_of(m, rank_);
                if (tells_peers) tell_all(m, e.what(), limit, gone);
                throw;
            }
        }
        return std::move(m.sockets);
    }

private:
    // The last words on a connection of a communicator that is not made, as a frame that every rank
    // understands that has all connections already.
    struct farewell {
        frame head{sizeof(failure_notice), frame::kind::notice};
        failure_notice notice;
    };
    static_assert(sizeof(farewell) == sizeof(frame) + sizeof(failure_notice));

    struct arrival {
        std::uint64_t context;
        int rank;
        descriptor socket;
        time_point since;
        bool is_closed = false;  // the other side has ended it meanwhile
        farewell last{};         // what it said, if anything
    };
    struct making {
        std::uint64_t context;
        std::span<const int> ranks;
        std::vector<descriptor> sockets;  // by place in `ranks`
        std::vector<bool> is_over;        // a connection has been there, and has ended
        std::vector<outgoing_connection> outgoing;
        int closed_by = -1;  // the place of the rank that has failed
        message why{};
        bool is_explained = true;
        time_point refused_since = never;  // by the system
        bool missed(std::size_t i, int me) const { return !sockets[i] && ranks[i] != me; }
    };
    struct counts_as_active {
        explicit counts_as_active(atomic<int>& n) : number(n) { number.add(1); }
        counts_as_active(const counts_as_active&) = delete;
        ~counts_as_active() { number.add(-1); }
        atomic<int>& number;
    };

    template <class G>
    static bool is_refused_for_good(making& m, const G& gets_more) {
        const time_point time = now();
        if (m.refused_since == never) m.refused_since = time;
        if (!gets_more() && time - m.refused_since > patience_with_system) return true;
        sleep_for(tuning::millisecond);
        return false;
    }

    // A descriptor for the time when there is no other one.
    void keep_spare() {
        if (!spare_) spare_ = make_socket(AF_UNIX);
    }

    static time_point soonest(time_point a, time_point b) { return a < b ? a : b; }

    // Tells each rank of a communicator why it is not made, and waits for those that have not come:
    // they would wait for this one. Connections that were told give their descriptors to others.
    template <class F>
    void tell_all(making& m, std::string_view why, time_point limit, F& gone) {
        spare_ = descriptor();
        m.refused_since = never;
        while (!tell_those_that_came(m, why) && now() <= limit && !gone()) try {
                turn(m);
                m.refused_since = never;
            } catch (const usage_error&) {
                if (is_refused_for_good(m, [] { return false; })) break;
            }
        m.outgoing.clear();
        keep_spare();
    }
    bool tell_those_that_came(making& m, std::string_view why) const {
        bool all = true;
        for (std::size_t i = 0; i < m.ranks.size(); ++i) {
            if (m.sockets[i]) {
                say_farewell(m.sockets[i], place_of(m, rank_), m.closed_by, why);
                m.sockets[i] = descriptor();
                m.is_over[i] = true;
            }
            all = all && (m.is_over[i] || m.ranks[i] == rank_);
        }
        return all;
    }

    void say_farewell(const descriptor& socket, int me, int failed, std::string_view why) const {
        farewell last;
        last.notice = notice_of(me, word::failed, why, {failed});
        static_cast<void>(::send(socket.number(), &last, sizeof last, MSG_NOSIGNAL));
        ::shutdown(socket.number(), SHUT_WR);
    }
    // The rank may have sent headers before.
    static farewell read_farewell(const descriptor& socket) {
        farewell last;
        last.notice = notice_of(0, word::departs, {}, {});
        std::byte bytes[4096];
        const ssize_t n = ::recv(socket.number(), bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < ssize_t(sizeof last)) return last;
        farewell found;
        std::memcpy(static_cast<void*>(&found), bytes + n - sizeof found, sizeof found);
        return found.head.what == frame::kind::notice ? found : last;
    }

    // The rank at a place has ended its connection: it has failed or is dead, or knows who is.
    void give_up_by(making& m, int place, farewell last) const {
        if (place < 0) return;
        m.sockets[std::size_t(place)] = descriptor();
        m.is_over[std::size_t(place)] = true;
        if (m.closed_by >= 0) return;
        m.closed_by = place;
        m.why = text("rank ", place, " has given it up");
        m.is_explained = false;
        if (!is_notice(last.notice, int(m.ranks.size())) || last.notice.what != word::failed)
            return;
        m.why = last.notice.text;
        m.is_explained = true;
        const int failed = last.notice.ranks[0];
        if (failed >= 0 && m.ranks[std::size_t(failed)] != rank_) m.closed_by = failed;
    }

    // The connections are many, and each look at one would be a call of the system.
    void look_for_farewells(making& m) const {
        std::vector<const descriptor*> looked_at;
        for (const descriptor& s : m.sockets)
            if (s) looked_at.push_back(&s);
        const std::vector<bool> ended = were_ended(looked_at);
        for (std::size_t i = 0, at = 0; i < m.ranks.size(); ++i)
            if (m.sockets[i] && ended[at++]) give_up_by(m, int(i), read_farewell(m.sockets[i]));
    }
    // -1: it is none of them.
    static int place_of(const making& m, int rank) {
        for (std::size_t i = 0; i < m.ranks.size(); ++i)
            if (m.ranks[i] == rank) return int(i);
        return -1;
    }

    bool is_here(int rank) const {
        return places_[std::size_t(rank)].host == places_[std::size_t(rank_)].host;
    }
    bool is_complete(const making& m) const {
        for (std::size_t i = 0; i < m.ranks.size(); ++i)
            if (m.missed(i, rank_)) return false;
        return true;
    }

    void turn(making& m) {
        std::exception_ptr refusal;
        {
            const lock_guard lock(mutex_);
            release_closed();
            keep_refusal(refusal, [&] { let_in(); });
            collect(m);
        }
        std::vector<pollfd> fds;
        const std::size_t tried = m.outgoing.size();
        std::vector<std::size_t> of_outgoing(tried);  // 0: it rests
        listener_.add_to(fds);
        for (std::size_t i = 0; i < tried; ++i) {
            pollfd wanted{-1, 0, 0};
            keep_refusal(refusal, [&] {
                if (!m.outgoing[i].prepare(wanted)) wanted.fd = -1;
            });
            if (wanted.fd < 0) continue;
            of_outgoing[i] = fds.size();
            fds.push_back(wanted);
        }
        {
            const lock_guard lock(mutex_);
            arriving_.add_to(fds);
        }
        ::poll(fds.data(), nfds_t(fds.size()), active_.load() > 1 ? 2 : 10);
        for (std::size_t i = tried; i-- > 0;) {
            const std::size_t at = of_outgoing[i];
            if (at == 0 || !m.outgoing[i].advance(fds[at].revents != 0)) continue;
            put(m, m.outgoing[i].peer(), m.outgoing[i].take());
            m.outgoing.erase(m.outgoing.begin() + std::ptrdiff_t(i));
        }
        if (refusal) std::rethrow_exception(refusal);
    }

    // Connections that have come go on where the system refuses another one: they may give back
    // what it needs.
    template <class F>
    static void keep_refusal(std::exception_ptr& refusal, F f) {
        try {
            f();
        } catch (const usage_error&) {
            refusal = std::current_exception();
        }
    }

    static void put(making& m, int rank, descriptor socket) {
        for (std::size_t i = 0; i < m.ranks.size(); ++i)
            if (m.ranks[i] == rank) m.sockets[i] = std::move(socket);
    }

    void let_in() {
        arriving_.advance(listener_, [this](int rank, std::uint64_t context, descriptor socket) {
            if (rank > rank_ && rank < int(places_.size()))
                arrivals_.push_back({context, rank, std::move(socket), now()});
        });
    }

    // The ranks of a communicator that was not made leave connections here. Their descriptors are
    // not kept.
    void release_closed() {
        std::vector<const descriptor*> open;
        for (const arrival& a : arrivals_)
            if (!a.is_closed) open.push_back(&a.socket);
        const std::vector<bool> ended = were_ended(open);
        std::size_t at = 0;
        for (arrival& a : arrivals_)
            if (!a.is_closed && ended[at++]) {
                a.is_closed = true;
                a.last = read_farewell(a.socket);
                a.socket = descriptor();
            }
    }

    // Takes what has come for a communicator, and forgets what nobody has taken for long.
    void collect(making& m) {
        std::size_t kept = 0;
        for (arrival& a : arrivals_) {
            if (a.context == m.context && a.is_closed) give_up_by(m, place_of(m, a.rank), a.last);
            else if (a.context == m.context) put(m, a.rank, std::move(a.socket));
            else if (now() - a.since < patience) std::swap(arrivals_[kept++], a);
        }
        arrivals_.resize(kept);
    }
    static constexpr std::int64_t patience = 600 * tuning::second;
    // Connections of a communicator that was not made may still be on their way to this process,
    // which takes descriptors for them and gives them back.
    static constexpr std::int64_t patience_with_system = 500 * tuning::millisecond;
    // Ranks that were told that another one has failed wait for connections a while longer, so that
    // each of them is told, and the one that failed waits for nobody in vain.
    static constexpr std::int64_t patience_with_told = 5 * tuning::second;

    // Says where a rank is that connects to this one.
    message print_origin(const listening_place& place) const {
        if (place.addresses == 0) return {};
        return text(" (of ", place.address[0].print(), ", to port ", listener_.port(), " here)");
    }

    [[noreturn]] void give_up(const making& m, bool timed_out) const {
        const int me = place_of(m, rank_);
        std::vector<int> late;
        message who;
        who += m.why;
        if (m.closed_by >= 0) late.push_back(m.closed_by);
        for (std::size_t i = 0; i < m.ranks.size() && m.closed_by < 0; ++i) {
            if (!m.missed(i, rank_)) continue;
            who += text(late.empty() ? "rank " : ", rank ", i);
            for (const outgoing_connection& c : m.outgoing)
                if (c.peer() == m.ranks[i]) who += text(" (", c.print(), ")");
            if (!connects_to(m.ranks[i])) who += print_origin(places_[std::size_t(m.ranks[i])]);
            late.push_back(int(i));
        }
        const message all = text("hvd: making of a communicator on rank ", me, ": ", who,
                                 m.closed_by >= 0 ? "" : " did not come in time");
        if (!m.is_explained) throw unexplained_end(me, all, std::move(late));
        throw_peer_error(timed_out, me, all, std::move(late));
    }

    const int rank_;
    const shared_secret secret_;
    const listening_socket listener_;
    const std::vector<listening_place> places_;
    mutex mutex_;
    pending_connections arriving_;
    std::vector<arrival> arrivals_;
    descriptor spare_;
    atomic<int> active_{0};
};

}  // namespace hvd::inline v0::detail
