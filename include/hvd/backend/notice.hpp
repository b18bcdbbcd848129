// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../detail/clock.hpp"
#include "record.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What a rank that gives its communicator up, or parts with it in order, tells those that it shares
// no memory with: nobody waits for a deadline that somebody has seen the reason of.
struct notice {
    std::int32_t teller;
    std::int32_t parts;        // whether in order: of no interest to those that don't wait for it
    std::int32_t missing[14];  // ranks, then -1
    char text[320] = {};       // who and why
};

static_assert(std::is_trivially_copyable_v<notice>);

inline notice notice_of(int teller, std::string_view text, const std::vector<int>& missing) {
    notice n;
    n.teller = teller;
    n.parts = 0;
    store(n.text, text);
    for (std::size_t i = 0; i < std::size(n.missing); ++i)
        n.missing[i] = i < missing.size() ? missing[i] : -1;
    return n;
}

inline std::vector<int> missing_of(const notice& n) {
    std::vector<int> ranks;
    for (const int rank : n.missing)
        if (rank >= 0) ranks.push_back(rank);
    return ranks;
}

// A link may carry notices, beside its data: tell(peer, notice) does not wait, and is false where
// nothing can be told any more; heard(notice) is true once one has come.
template <class Link>
concept tells = requires(Link& l, notice& n) {
    { l.tell(0, n) } -> std::convertible_to<bool>;
    { l.heard(n) } -> std::convertible_to<bool>;
};

// How a transport over a link gives up: it listens for notices, and passes on what it has seen
// itself.
template <class Link>
class word_of_mouth {
public:
    explicit word_of_mouth(Link& link) : link_(link), farewells_(std::size_t(link.size())) {}

    // Whether waiting is in vain.
    bool heard() {
        if constexpr (tells<Link>) {
            notice news;
            while (!heard_ && link_.heard(news)) {
                if (news.parts != 0) take_leave(news);
                else give_up_after(news);
            }
            if (!heard_ && waits_for_parted()) return true;
        }
        return heard_;
    }

    // All ranks tell each other that they part, and wait a while for the others to: then nothing is
    // on its way any more. False if somebody has not come to that.
    bool part(std::string_view reason, std::int64_t patience) {
        if constexpr (tells<Link>) {
            notice news = notice_of(link_.rank(), reason, {});
            news.parts = 1;
            for (int peer = 0; peer < link_.size(); ++peer)
                if (peer != link_.rank() && !link_.tell(peer, news)) return true;
            backoff pauses(false);
            for (const time_point limit = now() + patience; !heard() && parted_ + 1 < link_.size();)
                if (pauses.pause() && now() > limit) return false;
        }
        return !heard_;
    }

    bool heard_within(std::int64_t nanoseconds) {
        if constexpr (tells<Link>) {
            const time_point limit = now() + nanoseconds;
            while (!heard() && now() < limit) sleep_for(milliseconds);
        }
        return heard_;
    }

    // Why the communicator is given up, and for want of whom.
    const message& why() const { return why_; }
    const std::vector<int>& missing() const { return missing_; }

    void keep(message why, std::vector<int> missing) {
        why_ = std::move(why);
        missing_ = std::move(missing);
        last_ = notice_of(link_.rank(), why_, missing_);
    }

    // The ranks that messages are under way with; false if there are none.
    bool keep_pending() {
        std::vector<int> missing;
        message who;
        for (int p = 0; p < link_.size(); ++p) {
            if (p == link_.rank() || !link_.pending(p)) continue;
            who += text(missing.empty() ? "rank " : ", rank ", p);
            missing.push_back(p);
        }
        if (missing.empty()) return false;
        keep(text(who, " did not come in time"), std::move(missing));
        return true;
    }

    // To all, if it is news to them. `reason` where nothing was kept.
    void pass_on(std::string_view reason) noexcept {
        if constexpr (tells<Link>) {
            if (std::exchange(heard_, true)) return;
            if (last_.text[0] == 0) last_ = notice_of(link_.rank(), reason, {});
            for (int peer = 0; peer < link_.size(); ++peer)
                if (peer != link_.rank()) link_.tell(peer, last_);
        }
    }

private:
    void give_up_after(const notice& news) {
        heard_ = true;
        last_ = news;
        why_ = last_.text;
        missing_ = missing_of(last_);
        if (misses_this_rank())
            keep(text("rank ", last_.teller, " gave up: ", why_), {last_.teller});
    }

    void take_leave(const notice& news) {
        farewells_[std::size_t(news.teller)] = news.text;
        parted_at_ = now();
        ++parted_;
    }

    // What it sent before comes before its notice, and is there once it has been looked for again.
    bool waits_for_parted() {
        if (parted_ == 0 || now() - parted_at_ < 20 * milliseconds) return false;
        for (int p = 0; p < link_.size(); ++p) {
            if (farewells_[std::size_t(p)].empty() || !link_.pending(p)) continue;
            keep(text("rank ", p, " left (", std::string_view(farewells_[std::size_t(p)]), ")"),
                 {p});
            return true;
        }
        return false;
    }

    bool misses_this_rank() const {
        for (const int rank : missing_)
            if (rank == link_.rank()) return true;
        return false;
    }

    Link& link_;
    notice last_ = notice_of(-1, "", {});  // what the others hear: it has room for so much
    message why_;
    std::vector<int> missing_;
    bool heard_ = false;
    table<message> farewells_;  // of those that have parted, by rank
    int parted_ = 0;
    time_point parted_at_ = 0;
};

// The end of a communicator between nodes: in order, or by giving it up. What may still come to it
// is not to come to the next one.
template <class Link>
void part_or_pass_on(word_of_mouth<Link>& word, Link& link, std::string_view reason,
                     std::int64_t patience, bool lost) noexcept {
    if (lost) return word.pass_on(reason);
    try {
        if (!word.part(reason, patience)) link.cancel();
    } catch (...) {
        link.cancel();
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
