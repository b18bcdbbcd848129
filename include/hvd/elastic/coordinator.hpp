// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../platform/clock.hpp"
#include "messages.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

struct coordinator_rules {
    std::size_t start = 1;            // the first epoch has as many members
    std::size_t least = 1;            // no epoch has fewer
    std::size_t most = most_members;  // or more
    std::int64_t start_span = never;  // the first epoch begins then with `least`
    std::int64_t join_span = never;   // enough have come then, or nobody gets an epoch
    std::int64_t late = never;        // who comes later than others is left out
    std::int64_t rest = 300 * tuning::millisecond;  // a successor waits so long for a minority
    std::int64_t hold = 5 * tuning::second;         // a successor waits so long for a majority
    std::uint64_t self = 0;  // the number of the process that coordinates; 0: a launcher
    bool acts = true;        // it coordinates the first epoch
};

// Decides who belongs to an elastic job, and when an epoch begins. It is a machine of states
// without threads, connections or clocks: events and times go in, orders come out.
//
// A process joins, is a member of an epoch, and joins again when that ends for it: because another
// one was lost, because newcomers wait, or because it has finished. The next epoch begins when all
// members of the last one have joined or are lost. It goes on after the death of the coordinator:
// the members join at another process, which takes over once more than half of the last epoch's
// members have come. So two parts of a job that was torn never go on both.
class coordinator {
public:
    struct order {
        int link;
        coordinator_message::word what;
        std::size_t rank = 0;          // of an epoch
        const char* reason = nullptr;  // of a refusal
    };

    explicit coordinator(const coordinator_rules& rules) : rules_(rules), acts_(rules.acts) {}

    // A process joins. `link` is the number of its connection.
    void join(int link, join_request request, time_point now) {
        forget_older(link, request.said.self.id);
        if (request.said.epoch > epoch_) follow(request);
        member* m = find(link);
        if (m == nullptr) m = &members_.emplace_back(member{link, {}, true, false});
        m->said = request.said;
        m->waits = true;
        advance(now);
    }

    // The connection of a process has ended.
    void lose(int link, time_point now) {
        for (std::size_t i = 0; i < members_.size(); ++i) {
            if (members_[i].link != link) continue;
            const std::size_t rank = rank_of(members_[i].said.self.id);
            if (rank < gone_.size()) gone_[rank] = true;
            members_.erase(members_.begin() + std::ptrdiff_t(i));
            break;
        }
        advance(now);
    }

    // Time has passed.
    void advance(time_point now) {
        if (waiting() == 0) return forget_times();
        if (is_running()) {
            forget_times();
            return tell_members();
        }
        if (since_ == never) since_ = now;
        if (!all_have_come(now)) {
            if (!acts_ && !has_majority() && now - since_ > rules_.hold)
                return refuse_waiting(coordinator_message::try_another,
                                      "it has no majority of the last epoch's members");
        } else if (all_have_finished()) {
            return end_job();
        } else if (waiting() >= rules_.least) {
            return begin_epoch();
        }
        if (now - since_ > rules_.join_span)
            refuse_waiting(coordinator_message::refused, "too few processes have come in time");
    }

    // True while `advance` must be called from time to time.
    bool awaits_time() const { return waiting() > 0; }

    bool acts() const { return acts_; }
    std::uint64_t epoch() const { return epoch_; }
    const std::vector<elastic_member>& table() const { return table_; }
    // The head of an epoch's message, but for the rank and the job.
    const coordinator_message& head() const { return head_; }

    std::vector<order> take_orders() { return std::exchange(orders_, {}); }

private:
    struct member {
        int link;
        join_message said;
        bool waits, told;
    };

    member* find(int link) {
        for (member& m : members_)
            if (m.link == link) return &m;
        return nullptr;
    }
    std::size_t rank_of(std::uint64_t id) const {
        std::size_t rank = 0;
        while (rank < current_.size() && current_[rank] != id) ++rank;
        return rank;
    }
    bool belongs(const member& m) const { return rank_of(m.said.self.id) < current_.size(); }

    // A process that comes again by another connection has lost the older one.
    void forget_older(int link, std::uint64_t id) {
        for (std::size_t i = members_.size(); i-- > 0;)
            if (members_[i].said.self.id == id && members_[i].link != link) {
                refuse(members_[i], coordinator_message::try_another, "it has come again");
                members_.erase(members_.begin() + std::ptrdiff_t(i));
            }
    }

    // Another process has coordinated since. This one takes over if the majority comes to it.
    void follow(const join_request& request) {
        epoch_ = request.said.epoch;
        former_ = request.said.served_by;
        current_ = request.members;
        gone_.assign(current_.size(), false);
        acts_ = false;
        majority_since_ = never;
    }

    std::size_t waiting() const {
        std::size_t n = 0;
        for (const member& m : members_) n += m.waits ? 1 : 0;
        return n;
    }
    std::size_t waiting_of_last() const {
        std::size_t n = 0;
        for (const member& m : members_) n += m.waits && belongs(m) ? 1 : 0;
        return n;
    }
    bool has_majority() const { return 2 * waiting_of_last() > current_.size(); }
    // True while members of the epoch work and none has come back, for all that is known here.
    bool is_running() const {
        if (!acts_ || epoch_ == 0 || waiting_of_last() > 0) return false;
        for (const bool g : gone_)
            if (!g) return true;
        return false;
    }

    bool all_have_come(time_point now) {
        if (epoch_ == 0)
            return acts_ && (waiting() >= rules_.start || now - since_ > rules_.start_span);
        if (acts_)
            return now - since_ > rules_.late || misses_only([](std::uint64_t) { return false; });
        if (!has_majority()) return false;
        if (majority_since_ == never) majority_since_ = now;
        return now - majority_since_ > rules_.rest ||
               misses_only([this](std::uint64_t id) { return id == former_ && id != 0; });
    }
    // True if the members who have not come are lost, or may be missed.
    template <class MayBeMissed>
    bool misses_only(MayBeMissed may_be_missed) const {
        for (std::size_t rank = 0; rank < current_.size(); ++rank)
            if (!gone_[rank] && !waits(current_[rank]) && !may_be_missed(current_[rank]))
                return false;
        return true;
    }
    bool waits(std::uint64_t id) const {
        for (const member& m : members_)
            if (m.said.self.id == id) return m.waits;
        return false;
    }
    bool all_have_finished() const {
        bool any = false;
        for (const member& m : members_) {
            if (!m.waits || !belongs(m)) continue;
            if (m.said.finished == 0) return false;
            any = true;
        }
        return any;
    }

    // Tells the members that others wait, once in an epoch, if there is room for those.
    void tell_members() {
        std::size_t living = 0;
        for (const bool g : gone_) living += g ? 0 : 1;
        if (living >= rules_.most) return;
        for (member& m : members_) {
            if (m.waits || m.told || !belongs(m)) continue;
            m.told = true;
            orders_.push_back({m.link, coordinator_message::others_wait});
        }
    }

    void end_job() {
        for (member& m : members_)
            if (m.waits) orders_.push_back({m.link, coordinator_message::job_has_ended});
        forget_waiting();
    }

    void refuse(const member& m, coordinator_message::word how, const char* reason) {
        orders_.push_back({m.link, how, 0, reason});
    }
    void refuse_waiting(coordinator_message::word how, const char* reason) {
        for (const member& m : members_)
            if (m.waits) refuse(m, how, reason);
        forget_waiting();
    }
    void forget_times() { since_ = majority_since_ = never; }
    void forget_waiting() {
        std::vector<member> kept;
        for (const member& m : members_)
            if (!m.waits) kept.push_back(m);
        members_ = std::move(kept);
        forget_times();
    }

    // Members keep their order, and newcomers follow in the order in which they came.
    void begin_epoch() {
        std::vector<member*> chosen;
        for (const std::uint64_t id : current_)
            for (member& m : members_)
                if (m.waits && m.said.self.id == id) chosen.push_back(&m);
        for (member& m : members_)
            if (m.waits && !belongs(m)) chosen.push_back(&m);
        if (chosen.size() > rules_.most) chosen.resize(rules_.most);
        drop_late();

        head_ = {};
        head_.what = coordinator_message::epoch_begins;
        head_.size = std::uint32_t(chosen.size());
        head_.epoch = ++epoch_;
        head_.served_by = former_ = rules_.self;
        head_.equal = 1;
        head_.stamp = chosen[0]->said.stamp;
        for (std::size_t rank = 0; rank < chosen.size(); ++rank) {
            const state_stamp& stamp = chosen[rank]->said.stamp;
            if (stamp != head_.stamp || stamp.step < 0) head_.equal = 0;
            if (stamp <= head_.stamp) continue;
            head_.stamp = stamp;
            head_.source = std::uint32_t(rank);
        }
        current_.clear();
        table_.clear();
        for (std::size_t rank = 0; rank < chosen.size(); ++rank) {
            member& m = *chosen[rank];
            m.waits = m.told = false;
            current_.push_back(m.said.self.id);
            table_.push_back(m.said.self);
            orders_.push_back({m.link, coordinator_message::epoch_begins, rank});
        }
        gone_.assign(current_.size(), false);
        acts_ = true;
        forget_times();
        std::erase_if(members_, [](const member& m) { return m.link < 0; });
    }
    // Those who have not come are left out, and may come again as newcomers.
    void drop_late() {
        for (member& m : members_)
            if (!m.waits) {
                refuse(m, coordinator_message::try_another, "it came too late");
                m.link = -1;
            }
    }

    const coordinator_rules rules_;
    bool acts_;
    std::uint64_t epoch_ = 0, former_ = 0;
    std::vector<std::uint64_t> current_;  // the members of the last epoch, by rank
    std::vector<bool> gone_;              // their connection has ended since
    std::vector<elastic_member> table_;
    coordinator_message head_;
    std::vector<member> members_;  // all who have joined
    std::vector<order> orders_;
    time_point since_ = never;           // the next epoch is awaited
    time_point majority_since_ = never;  // a successor has a majority
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
