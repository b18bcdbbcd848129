// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../core/tuning.hpp"
#include "../platform/clock.hpp"
#include "call_header.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What a rank that gives its communicator up, or parts with it in order, tells those that it shares
// no memory with: nobody waits for a deadline that somebody has seen the reason of.
struct failure_notice {
    std::int32_t sender;
    std::int32_t departs;      // whether in order: of no interest to those that don't wait for it
    std::int32_t missing[14];  // ranks, then -1
    char text[320] = {};       // who and why
};

static_assert(std::is_trivially_copyable_v<failure_notice>);

inline failure_notice notice_of(int sender, std::string_view text,
                                const std::vector<int>& missing) {
    failure_notice n;
    n.sender = sender;
    n.departs = 0;
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

// An endpoint may carry notices, beside its data: tell(peer, notice) does not wait, and is false
// where nothing can be told any more; heard(notice) is true once one has come.
template <class Endpoint>
concept sends_notices = requires(Endpoint& l, failure_notice& n) {
    { l.send_notice(0, n) } -> std::convertible_to<bool>;
    { l.receive_notice(n) } -> std::convertible_to<bool>;
};

// How a transport over an endpoint gives up: it listens for notices, and passes on what it has seen
// itself.
template <class Endpoint>
class notice_exchange {
public:
    explicit notice_exchange(Endpoint& endpoint)
        : endpoint_(endpoint), departures_(std::size_t(endpoint.size())) {}

    // Whether waiting is in vain.
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

    // All ranks tell each other that they part, and wait a while for the others to: then nothing is
    // on its way any more. False if somebody has not come to that.
    bool depart(std::string_view reason, std::int64_t patience) {
        if constexpr (sends_notices<Endpoint>) {
            failure_notice news = notice_of(endpoint_.rank(), reason, {});
            news.departs = 1;
            for (int peer = 0; peer < endpoint_.size(); ++peer)
                if (peer != endpoint_.rank() && !endpoint_.send_notice(peer, news)) return true;
            backoff pauses(false);
            for (const time_point limit = now() + patience;
                 !heard() && departed_ + 1 < endpoint_.size();)
                if (pauses.pause() && now() > limit) return false;
        }
        return !heard_;
    }

    bool heard_within(std::int64_t nanoseconds) {
        if constexpr (sends_notices<Endpoint>) {
            const time_point limit = now() + nanoseconds;
            while (!heard() && now() < limit) sleep_for(tuning::notice_interval);
        }
        return heard_;
    }

    // Why the communicator is given up, and for want of whom.
    const message& why() const { return why_; }
    const std::vector<int>& missing() const { return missing_; }

    void keep(message why, std::vector<int> missing) {
        why_ = std::move(why);
        missing_ = std::move(missing);
        last_ = notice_of(endpoint_.rank(), why_, missing_);
    }

    // The ranks that messages are under way with; false if there are none.
    bool keep_pending() {
        std::vector<int> missing;
        message who;
        for (int p = 0; p < endpoint_.size(); ++p) {
            if (p == endpoint_.rank() || !endpoint_.pending(p)) continue;
            who += text(missing.empty() ? "rank " : ", rank ", p);
            missing.push_back(p);
        }
        if (missing.empty()) return false;
        keep(text(who, " did not come in time"), std::move(missing));
        return true;
    }

    // To all, if it is news to them. `reason` where nothing was kept.
    void pass_on(std::string_view reason) noexcept {
        if constexpr (sends_notices<Endpoint>) {
            if (std::exchange(heard_, true)) return;
            if (last_.text[0] == 0) last_ = notice_of(endpoint_.rank(), reason, {});
            for (int peer = 0; peer < endpoint_.size(); ++peer)
                if (peer != endpoint_.rank()) endpoint_.send_notice(peer, last_);
        }
    }

private:
    void give_up_after(const failure_notice& news) {
        heard_ = true;
        last_ = news;
        why_ = last_.text;
        missing_ = missing_of(last_);
        if (misses_this_rank())
            keep(text("rank ", last_.sender, " gave up: ", why_), {last_.sender});
    }

    void note_departure(const failure_notice& news) {
        departures_[std::size_t(news.sender)] = news.text;
        departed_at_ = now();
        ++departed_;
    }

    // What it sent before comes before its notice, and is there once it has been looked for again.
    bool waits_for_departed() {
        if (departed_ == 0 || now() - departed_at_ < tuning::departure_patience) return false;
        for (int p = 0; p < endpoint_.size(); ++p) {
            if (departures_[std::size_t(p)].empty() || !endpoint_.pending(p)) continue;
            keep(text("rank ", p, " left (", std::string_view(departures_[std::size_t(p)]), ")"),
                 {p});
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
    failure_notice last_ = notice_of(-1, "", {});  // what the others hear: it has room for so much
    message why_;
    std::vector<int> missing_;
    bool heard_ = false;
    table<message> departures_;  // of those that have parted, by rank
    int departed_ = 0;
    time_point departed_at_ = 0;
};

// The end of a communicator between nodes: in order, or by giving it up. What may still come to it
// is not to come to the next one.
template <class Endpoint>
void depart_or_notify(notice_exchange<Endpoint>& word, Endpoint& endpoint, std::string_view reason,
                      std::int64_t patience, bool lost) noexcept {
    if (lost) return word.pass_on(reason);
    try {
        if (!word.depart(reason, patience)) endpoint.cancel();
    } catch (...) {
        endpoint.cancel();
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
