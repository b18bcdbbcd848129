// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../core/lean/table.hpp"
#include "../core/tuning.hpp"
#include "../platform/clock.hpp"
#include "call_header.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A message to ranks that share no memory with the sender. The sender gives its communicator up, or
// departs in order. So nobody waits for a deadline if some rank knows the reason.
struct failure_notice {
    std::int32_t sender;
    // 1: the sender departs in order, which only concerns ranks that wait for it
    std::int32_t departs;
    std::int32_t missing[14];  // ranks, then -1
    // of a departure: the messages that the sender has begun to send to the rank that gets the
    // notice, and to receive from it
    std::uint64_t sent, received;
    char text[320] = {};  // the rank and the reason
};

static_assert(std::is_trivially_copyable_v<failure_notice>);

inline failure_notice notice_of(int sender, std::string_view text,
                                const std::vector<int>& missing) {
    failure_notice n;
    n.sender = sender;
    n.departs = 0;
    n.sent = n.received = 0;
    store(n.text, text);
    for (std::size_t i = 0; i < std::size(n.missing); ++i)
        n.missing[i] = i < missing.size() ? missing[i] : -1;
    return n;
}

inline std::vector<int> missing_of(const failure_notice& n) {
    std::vector<int> ranks;
    for (const int rank : n.missing)
        if (rank >= 0) ranks.push_back(rank);
    return ranks;
}

// An endpoint may carry notices beside its data. send_notice(peer, notice) does not wait, and
// returns false if no notice can be sent any more. receive_notice(notice) returns true once one has
// come. sends_begun(peer) and receives_begun(peer) count the messages of both ranks' data so far.
template <class Endpoint>
concept sends_notices = requires(Endpoint& l, failure_notice& n) {
    { l.sends_begun(0) } -> std::convertible_to<std::uint64_t>;
    { l.receives_begun(0) } -> std::convertible_to<std::uint64_t>;
    { l.send_notice(0, n) } -> std::convertible_to<bool>;
    { l.receive_notice(n) } -> std::convertible_to<bool>;
};

// Gives up a transport over an endpoint. It listens for notices, and passes on the failures that
// this rank has seen.
template <class Endpoint>
class notice_exchange {
public:
    explicit notice_exchange(Endpoint& endpoint)
        : endpoint_(endpoint), departures_(std::size_t(endpoint.size())) {}

    // True if waiting is in vain.
    bool heard() {
        if constexpr (sends_notices<Endpoint>) {
            failure_notice news;
            while (!heard_ && endpoint_.receive_notice(news)) {
                if (news.departs != 0) note_departure(news);
                else give_up_after(news);
            }
            if (!heard_ && waits_for_departed()) return true;
        }
        return heard_;
    }

    // Tells all ranks that this one departs. It waits for nobody: a rank may depart from two
    // communicators in another order than its peers do.
    [[gnu::cold]] void depart(std::string_view reason) noexcept {
        if constexpr (sends_notices<Endpoint>) {
            failure_notice news = notice_of(endpoint_.rank(), reason, {});
            news.departs = 1;
            for (int peer = 0; peer < endpoint_.size(); ++peer) {
                if (peer == endpoint_.rank()) continue;
                news.sent = endpoint_.sends_begun(peer);
                news.received = endpoint_.receives_begun(peer);
                if (!endpoint_.send_notice(peer, news)) return;
            }
        }
    }

    bool heard_within(std::int64_t nanoseconds) {
        if constexpr (sends_notices<Endpoint>) {
            const time_point limit = now() + nanoseconds;
            while (!heard() && now() < limit) sleep_for(tuning::notice_interval);
        }
        return heard_;
    }

    // The reason for which the communicator is given up, and the ranks that are missing.
    const message& why() const { return why_; }
    const std::vector<int>& missing() const { return missing_; }

    void keep(message why, std::vector<int> missing) {
        why_ = std::move(why);
        missing_ = std::move(missing);
        last_ = notice_of(endpoint_.rank(), why_, missing_);
    }

    // The ranks that messages are under way with.
    std::vector<int> pending() {
        std::vector<int> ranks;
        for (int p = 0; p < endpoint_.size(); ++p)
            if (p != endpoint_.rank() && endpoint_.pending(p)) ranks.push_back(p);
        return ranks;
    }

    // Keeps these ranks as the reason for giving up. It returns false if there are none.
    bool keep_pending() {
        std::vector<int> missing = pending();
        if (missing.empty()) return false;
        message who;
        for (const int p : missing) who += text(who.empty() ? "rank " : ", rank ", p);
        keep(text(who, " did not come in time"), std::move(missing));
        return true;
    }

    // Tells all ranks, unless they know. `reason` is used if none was kept.
    void pass_on(std::string_view reason) noexcept {
        if constexpr (sends_notices<Endpoint>) {
            if (std::exchange(heard_, true)) return;
            if (last_.text[0] == 0) last_ = notice_of(endpoint_.rank(), reason, {});
            for (int peer = 0; peer < endpoint_.size(); ++peer)
                if (peer != endpoint_.rank()) endpoint_.send_notice(peer, last_);
        }
    }

private:
    struct departure {
        message reason;  // empty: the rank has not departed
        std::uint64_t sent = 0, received = 0;
    };

    void give_up_after(const failure_notice& news) {
        heard_ = true;
        last_ = news;
        why_ = last_.text;
        missing_ = missing_of(last_);
        if (misses_this_rank())
            keep(text("rank ", last_.sender, " gave up: ", why_), {last_.sender});
    }

    void note_departure(const failure_notice& news) {
        departure& d = departures_[std::size_t(news.sender)];
        d = {news.text, news.sent, news.received};
        any_departed_ = true;
    }

    // A departed rank takes part in no further call. Its data of earlier calls still comes, so the
    // counts tell if this rank waits for more.
    bool waits_for_departed() {
        if (!any_departed_) return false;
        for (int p = 0; p < endpoint_.size(); ++p) {
            const departure& d = departures_[std::size_t(p)];
            if (d.reason.empty() ||
                (endpoint_.receives_begun(p) <= d.sent && endpoint_.sends_begun(p) <= d.received))
                continue;
            keep(text("rank ", p, " left (", std::string_view(d.reason), ")"), {p});
            return true;
        }
        return false;
    }

    bool misses_this_rank() const {
        for (const int rank : missing_)
            if (rank == endpoint_.rank()) return true;
        return false;
    }

    Endpoint& endpoint_;
    // the notice that the others get; it holds that many characters
    failure_notice last_ = notice_of(-1, "", {});
    message why_;
    std::vector<int> missing_;
    bool heard_ = false;
    table<departure> departures_;  // by rank
    bool any_departed_ = false;
};

// Ends a communicator between nodes: in order, or by giving it up.
template <class Endpoint>
void depart_or_notify(notice_exchange<Endpoint>& word, std::string_view reason,
                      bool lost) noexcept {
    if (lost) word.pass_on(reason);
    else word.depart(reason);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
