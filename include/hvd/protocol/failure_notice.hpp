// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../core/lean/table.hpp"
#include "../core/tuning.hpp"
#include "../platform/clock.hpp"
#include "call_header.hpp"

namespace hvd::inline v0::detail {

enum class word : std::int32_t {
    departs,  // the sender leaves in order, which only concerns ranks that wait for it
    failed,   // the sender knows why the communicator is given up
    waits,    // the sender gives up, and says for which ranks it waited
    unmade,   // the sender can't make a communicator of this one, and works on
    died,     // as `failed`, since the process of a rank has ended
};

// A message to ranks that share no memory with the sender. The sender gives its communicator up, or
// departs in order. So nobody waits for a timeout if some rank knows the reason.
struct failure_notice {
    std::int32_t sender;
    word what;
    // of `waits`: its own timeout has passed; of `failed`: a timeout is the reason
    std::int32_t expired;
    std::int32_t late;   // of `waits`: it came to the call when others had given up
    std::uint64_t call;  // of `waits`: the number of the sender's call; of `unmade`: the context
    // of a departure: the messages that the sender has begun to send to the rank that gets the
    // notice, and to receive from it
    std::uint64_t sent, received;
    std::int32_t ranks[48];  // that are missing, or waited for; then -1
    char text[320] = {};     // the rank and the reason
};

static_assert(std::is_trivially_copyable_v<failure_notice>);

// A rank has ended a connection without a word. It, or another rank, knows why.
class unexplained_end : public peer_error {
public:
    using peer_error::peer_error;
};

inline failure_notice notice_of(int sender, word what, std::string_view text,
                                const std::vector<int>& ranks) {
    failure_notice n;
    n.sender = sender;
    n.what = what;
    n.expired = n.late = 0;
    n.call = n.sent = n.received = 0;
    store(n.text, text);
    for (std::size_t i = 0; i < std::size(n.ranks); ++i)
        n.ranks[i] = i < ranks.size() ? ranks[i] : -1;
    return n;
}

inline std::vector<int> ranks_of(const failure_notice& n) {
    std::vector<int> ranks;
    for (const int rank : n.ranks)
        if (rank >= 0) ranks.push_back(rank);
    return ranks;
}

// Ends the text of a notice that has come. False for one that no rank sends.
inline bool is_notice(failure_notice& n, int size) {
    n.text[sizeof n.text - 1] = 0;
    bool known =
        n.sender >= 0 && n.sender < size && n.what >= word::departs && n.what <= word::died;
    for (const int rank : n.ranks) known = known && rank >= -1 && rank < size;
    return known;
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

// An endpoint may know by itself that a rank is gone. lost(why) returns the ranks that messages are
// under way with, and that are; `why` gets a text.
template <class Endpoint>
concept finds_lost = requires(Endpoint& l, message& why) {
    { l.lost(why) } -> std::convertible_to<std::vector<int>>;
};

// Gives up a transport over an endpoint. It listens for notices, and passes on the failures that
// this rank has seen.
//
// A rank whose timeout passes often waits for a rank that is itself waiting. So it tells all ranks
// for whom it waits, and every rank that waits in a call answers in the same way. The ranks that
// are named are those that somebody waits for and that say nothing themselves: dead, stopped, or
// outside of hvd. A rank that comes to the call when others have given up is late, and named too.
// So the punctual ranks name the same ranks, whichever of their timeouts passes first. A rank that
// knows more, as that a process has died, says that instead, and all believe it.
template <class Endpoint>
class notice_exchange {
public:
    explicit notice_exchange(Endpoint& endpoint)
        : endpoint_(endpoint),
          departures_(std::size_t(endpoint.size())),
          voices_(std::size_t(endpoint.size())),
          awaited_(std::size_t(endpoint.size())) {}

    // Called at the beginning of each call.
    void begin_call() noexcept {
        ++call_;
        looked_ = false;
    }

    // Called at the beginning of each message, which the other ranks do not count.
    void begin_message() noexcept { looked_ = false; }

    // True if waiting is in vain.
    bool received() {
        if constexpr (sends_notices<Endpoint>) {
            listen();
            if (!knows_ && !alarmed_ && (waits_for_departed() || waits_for_lost())) return true;
            looked_ = true;
        }
        return knows_ || alarmed_;
    }

    // True if a rank has given up or departed, whether it is waited for or not. An MPI may find a
    // message only when it is asked again.
    [[gnu::cold]] bool anyone_left() {
        bool any = false;
        for (int look = 0; look < 10 && !any; ++look) any = received() || any_departed_;
        return any;
    }
    // True if the reason is known: why() and missing() say it.
    bool knows_reason() const { return knows_; }
    // True if other ranks have given up, and said for whom they waited.
    bool alarmed() const { return alarmed_; }

    // The reason for which the communicator is given up, and the ranks that are missing.
    const message& why() const { return why_; }
    const std::vector<int>& missing() const { return missing_; }
    // True if it is that the process of a rank has ended.
    bool knows_death() const { return cause_ == cause::death; }

    enum class cause : unsigned char { other, death, timeout };

    // This rank knows the reason. The others learn it when it leaves.
    void keep(message why, std::vector<int> missing, cause c = cause::other) {
        knows_ = true;
        why_ = std::move(why);
        missing_ = std::move(missing);
        cause_ = c;
    }

    // Throws the reason. `call` is the label of the call.
    [[gnu::cold, noreturn]] void throw_reason(std::string_view call) const {
        throw_peer_error(cause_ == cause::timeout, me(),
                         text("hvd: ", call, " on rank ", me(), ": ", why_), missing_);
    }

    // The ranks that messages are under way with.
    std::vector<int> pending() {
        std::vector<int> ranks;
        for (int p = 0; p < endpoint_.size(); ++p)
            if (p != me() && endpoint_.pending(p)) ranks.push_back(p);
        return ranks;
    }

    // Gives up: says that this rank waits for `ranks`, listens to the others, and finds the ranks
    // to name. The time only bounds how long a rank may be silent while others are silent, too.
    [[gnu::cold]] void confer(const std::vector<int>& ranks, bool expired) {
        failure_notice mine = notice_of(me(), word::waits, "", ranks);
        mine.expired = expired ? 1 : 0;
        mine.late = late_ ? 1 : 0;
        mine.call = call_;
        if constexpr (sends_notices<Endpoint>) {
            told_ = true;
            send_to_all(mine);
            note_waiting(mine);
            for (const time_point limit = now() + tuning::answer_patience;
                 !knows_ && !is_decided() && now() < limit; listen())
                sleep_for(tuning::notice_interval);
        } else {
            note_waiting(mine);
        }
        if (!knows_) conclude();
    }

    // Waits a while for any notice of a rank, which has sent one.
    [[gnu::cold]] void await(int rank) {
        if constexpr (sends_notices<Endpoint>) {
            const std::size_t p = std::size_t(rank);
            for (const time_point limit = now() + tuning::answer_patience;
                 !knows_ && voices_[p] == voice::none && departures_[p].reason.empty() &&
                 now() < limit;
                 listen())
                sleep_for(tuning::notice_interval);
        }
    }

    // Tells all ranks, unless they know. `reason` is used if none was kept. It needs no memory.
    void pass_on(std::string_view reason) noexcept {
        if constexpr (sends_notices<Endpoint>) {
            if (std::exchange(told_, true)) return;
            failure_notice notice =
                notice_of(me(), knows_death() ? word::died : word::failed, why_, missing_);
            notice.expired = cause_ == cause::timeout ? 1 : 0;
            if (!knows_) {
                store_parts(notice.text, {"rank ", me(), " left (", reason, ")"});
                notice.ranks[0] = me();
            }
            send_to_all(notice);
        }
    }

    // Tells all ranks that this one can't make the communicator with that number, for which they
    // may wait somewhere else.
    [[gnu::cold]] void tell_unmade(std::uint64_t context) noexcept {
        if constexpr (sends_notices<Endpoint>) {
            failure_notice notice = notice_of(me(), word::unmade, "", {});
            notice.call = context;
            send_to_all(notice);
        }
    }
    // True if a rank has told that.
    [[gnu::cold]] bool is_unmade(std::uint64_t context) {
        if constexpr (sends_notices<Endpoint>) listen();
        return unmade_ == context;
    }

    // Tells all ranks that this one departs. It waits for nobody: a rank may depart from two
    // communicators in another order than its peers do.
    [[gnu::cold]] void depart(std::string_view reason) noexcept {
        if constexpr (sends_notices<Endpoint>)
            send_to_all(notice_of(me(), word::departs, reason, {}));
    }

private:
    struct departure {
        message reason;  // empty: the rank has not departed
        std::uint64_t sent = 0, received = 0;
    };
    enum class voice : unsigned char { none, waits, is_late, knows };

    int me() const { return endpoint_.rank(); }

    void send_to_all(failure_notice notice) noexcept {
        for (int peer = 0; peer < endpoint_.size(); ++peer) {
            if (peer == me()) continue;
            notice.sent = endpoint_.sends_begun(peer);
            notice.received = endpoint_.receives_begun(peer);
            if (!endpoint_.send_notice(peer, notice)) return;
        }
    }

    void listen() {
        failure_notice notice;
        while (endpoint_.receive_notice(notice)) {
            if (notice.what == word::departs) note_departure(notice);
            else if (notice.what == word::waits) note_waiting(notice);
            else if (notice.what == word::unmade) unmade_ = notice.call;
            else note_reason(notice);
        }
    }

    void note_reason(const failure_notice& notice) {
        voices_[std::size_t(notice.sender)] = voice::knows;
        if (knows_) return;
        keep(notice.text, ranks_of(notice),
             notice.what == word::died ? cause::death
             : notice.expired != 0     ? cause::timeout
                                       : cause::other);
        told_ = true;  // the sender tells everybody
        for (const int rank : missing_)
            if (rank == me())
                return keep(text("rank ", notice.sender, " gave up: ", why_), {notice.sender});
    }

    // A rank that had not yet looked for notices in its call came to it just now.
    void note_waiting(const failure_notice& notice) {
        if (notice.sender != me() && !told_ && !std::exchange(alarmed_, true))
            late_ = !looked_ && notice.call >= call_;
        voices_[std::size_t(notice.sender)] = notice.late != 0 ? voice::is_late : voice::waits;
        const std::vector<int> ranks = ranks_of(notice);
        for (const int rank : ranks) awaited_[std::size_t(rank)] = true;
        if (notice.expired == 0 || ranks.empty() || (first_ >= 0 && first_ < notice.sender)) return;
        first_ = notice.sender;
        first_waits_for_ = ranks;
    }

    void note_departure(const failure_notice& notice) {
        departure& d = departures_[std::size_t(notice.sender)];
        d = {notice.text, notice.sent, notice.received};
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

    // A rank that the endpoint knows to be gone says nothing any more.
    bool waits_for_lost() {
        if constexpr (finds_lost<Endpoint>) {
            message why;
            std::vector<int> ranks = endpoint_.lost(why);
            if (ranks.empty()) return false;
            keep(std::move(why), std::move(ranks));
        }
        return knows_;
    }

    bool is_silent(int rank) const {
        return voices_[std::size_t(rank)] == voice::none &&
               departures_[std::size_t(rank)].reason.empty();
    }

    // True if no further notice would change who is named.
    bool is_decided() const {
        int silent = 0, awaited = 0;
        for (int p = 0; p < endpoint_.size(); ++p) {
            if (!is_silent(p)) continue;
            ++silent;
            awaited += awaited_[std::size_t(p)] ? 1 : 0;
        }
        return silent == 0 || (silent == 1 && awaited == 1);
    }

    [[gnu::cold]] void conclude() {
        std::vector<int> named;
        for (int p = 0; p < endpoint_.size(); ++p)
            if (voices_[std::size_t(p)] == voice::is_late ||
                (is_silent(p) && awaited_[std::size_t(p)]))
                named.push_back(p);
        if (named.empty()) named = first_waits_for_;  // all ranks wait for each other
        message who;
        std::vector<int> others;
        for (const int p : named) {
            who += text(who.empty() ? "rank " : ", rank ", p);
            if (p != me()) others.push_back(p);
        }
        // Nobody waits for anybody by now: the timeout passed just before the data was there.
        if (named.empty()) who = "the data";
        who += " did not come in time";
        // A rank that is the only one that is late has not waited for another.
        const bool is_punctual = !others.empty() || named.empty();
        if (others.size() < named.size() && first_ >= 0 && first_ != me()) {
            who = text("rank ", first_, " gave up: ", who);
            if (others.empty()) others.push_back(first_);
        }
        keep(std::move(who), std::move(others), is_punctual ? cause::timeout : cause::other);
    }

    Endpoint& endpoint_;
    message why_;
    std::vector<int> missing_;
    bool knows_ = false, alarmed_ = false;
    cause cause_ = cause::other;  // of the reason that this rank knows
    bool told_ = false;           // all ranks know that this one gives up
    bool looked_ = false, late_ = false;
    std::uint64_t call_ = 0;
    std::uint64_t unmade_ = 0;     // the last communicator that a rank could not make
    table<departure> departures_;  // by rank
    bool any_departed_ = false;
    table<voice> voices_;  // by rank: its last word
    table<bool> awaited_;  // by rank: some rank waits for it
    int first_ = -1;       // the first of the ranks whose timeout has passed, and its ranks
    std::vector<int> first_waits_for_;
};

// Ends a communicator between nodes: in order, or by giving it up.
template <class Endpoint>
void depart_or_notify(notice_exchange<Endpoint>& word, std::string_view reason,
                      bool lost) noexcept {
    if (lost) word.pass_on(reason);
    else word.depart(reason);
}

}  // namespace hvd::inline v0::detail
