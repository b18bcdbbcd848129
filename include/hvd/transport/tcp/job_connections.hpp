// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>

#include "../../core/lean/atomic.hpp"
#include "../../platform/thread.hpp"
#include "job_secret.hpp"
#include "outgoing_connection.hpp"
#include "rendezvous_client.hpp"
#include "strangers.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

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
          strangers_(secret_, rank) {}
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
    // gets_more() is true.
    // @throws peer_error that names the ranks by their place in `ranks`; usage_error if the system
    // refuses.
    template <class F, class G>
    std::vector<descriptor> connect(std::uint64_t context, std::span<const int> ranks,
                                    time_point limit, F gone, G gets_more) {
        making m{context, ranks, std::vector<descriptor>(ranks.size()), {}};
        for (const int r : ranks)
            if (connects_to(r))
                m.outgoing.emplace_back(secret_, rank_, r, places_[std::size_t(r)], is_here(r),
                                        context);
        const counts_as_active active(active_);
        while (!is_complete(m)) {
            if (now() > limit || m.closed_by >= 0 || gone()) give_up(m);
            try {
                turn(m);
                m.refused_since = never;
            } catch (const usage_error&) {
                const time_point time = now();
                if (m.refused_since == never) m.refused_since = time;
                if (!gets_more() && time - m.refused_since > patience_with_system) throw;
                sleep_for(tuning::millisecond);
            }
        }
        return std::move(m.sockets);
    }

private:
    struct arrival {
        std::uint64_t context;
        int rank;
        descriptor socket;  // none if the other side has closed it meanwhile
        time_point since;
    };
    struct making {
        std::uint64_t context;
        std::span<const int> ranks;
        std::vector<descriptor> sockets;  // by place in `ranks`
        std::vector<outgoing_connection> outgoing;
        int closed_by = -1;                // a rank that has come and gone
        time_point refused_since = never;  // by the system
        bool missed(std::size_t i, int me) const { return !sockets[i] && ranks[i] != me; }
    };
    struct counts_as_active {
        explicit counts_as_active(atomic<int>& n) : number(n) { number.add(1); }
        counts_as_active(const counts_as_active&) = delete;
        ~counts_as_active() { number.add(-1); }
        atomic<int>& number;
    };

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
            strangers_.add_to(fds);
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
        strangers_.advance(listener_, [this](int rank, std::uint64_t context, descriptor socket) {
            if (rank > rank_ && rank < int(places_.size()))
                arrivals_.push_back({context, rank, std::move(socket), now()});
        });
    }

    // The ranks of a communicator that was not made leave connections here. Their descriptors are
    // not kept.
    void release_closed() {
        for (arrival& a : arrivals_)
            if (a.socket && was_ended(a.socket)) a.socket = descriptor();
    }

    // Takes what has come for a communicator, and forgets what nobody has taken for long.
    void collect(making& m) {
        std::size_t kept = 0;
        for (arrival& a : arrivals_) {
            if (a.context == m.context && !a.socket) m.closed_by = a.rank;
            else if (a.context == m.context) put(m, a.rank, std::move(a.socket));
            else if (now() - a.since < patience) std::swap(arrivals_[kept++], a);
        }
        arrivals_.resize(kept);
    }
    static constexpr std::int64_t patience = 600 * tuning::second;
    // Connections of a communicator that was not made may still be on their way to this process,
    // which takes descriptors for them and gives them back.
    static constexpr std::int64_t patience_with_system = 500 * tuning::millisecond;

    // Says where a rank is that connects to this one.
    message print_origin(const listening_place& place) const {
        if (place.addresses == 0) return {};
        return text(" (of ", place.address[0].print(), ", to port ", listener_.port(), " here)");
    }

    [[noreturn]] void give_up(const making& m) const {
        std::vector<int> late;
        message who;
        int me = 0;
        for (std::size_t i = 0; i < m.ranks.size(); ++i) {
            if (m.ranks[i] == rank_) me = int(i);
            if (!m.missed(i, rank_)) continue;
            if (m.closed_by >= 0 && m.closed_by != m.ranks[i]) continue;
            who += text(late.empty() ? "rank " : ", rank ", i);
            for (const outgoing_connection& c : m.outgoing)
                if (c.peer() == m.ranks[i]) who += text(" (", c.print(), ")");
            if (!connects_to(m.ranks[i])) who += print_origin(places_[std::size_t(m.ranks[i])]);
            late.push_back(int(i));
        }
        throw peer_error(me,
                         text("hvd: making of a communicator on rank ", me, ": ", who,
                              m.closed_by >= 0 ? " has given it up" : " did not come in time"),
                         std::move(late));
    }

    const int rank_;
    const shared_secret secret_;
    const listening_socket listener_;
    const std::vector<listening_place> places_;
    mutex mutex_;
    strangers strangers_;
    std::vector<arrival> arrivals_;
    atomic<int> active_{0};
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
