// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "../../platform/clock.hpp"
#include "messages.hpp"

namespace hvd::inline v0::detail {

struct coordinator_rules {
    std::size_t start = 1;            // the first epoch has as many members
    std::size_t least = 1;            // no epoch has fewer
    std::size_t most = most_members;  // or more
    std::int64_t start_span = never;  // the first epoch begins then with `least`
    std::int64_t join_span = never;   // enough have come then, or nobody gets an epoch
    std::int64_t late = never;        // who comes later than others is left out
    std::int64_t rest = 300 * tuning::millisecond;  // a successor waits so long for a minority
    std::int64_t hold = 5 * tuning::second;         // who waits without a majority is sent on
    // Members hear at once of a death, and so late of another end of their epoch, which most of
    // them see by themselves. A message to a silent host would put off the time when its connection
    // ends.
    std::int64_t grace = 500 * tuning::millisecond;
    std::uint64_t self = 0;  // the number of the process that coordinates; 0: a launcher
    bool acts = true;        // it coordinates the first epoch
};

// Decides who belongs to an elastic job, and when an epoch begins. It is a machine of states
// without threads, connections or clocks: events and times go in, orders come out.
//
// A process joins, is a member of an epoch, and joins again when that ends for it: because another
// one was lost, because newcomers wait, or because it has finished. The next epoch begins when all
// members of the last one have joined or are lost. It goes on after the death of the coordinator:
// then the members join at another process, which takes over.
//
// Two parts of a job that was torn never go on both. An epoch needs the votes of more than half of
// the members of the last one, without those that are dead for certain: whose system has closed
// their connection, see was_closed_by_peer. A launcher that coordinated the last epoch votes, too,
// and decides if half of the votes are there. Half are also enough if all others are gone. That a
// member has seen the end of its coordinator must be certain then: one that lives and leaves it out
// tells it so before.
//
// A member records an epoch once it is connected to all others, its first one at once, and works in
// it only when all have recorded it. So the last epoch is one of which a member knows that it has
// worked. Any later one that is known here, and that all of its members who are here have recorded,
// may have worked, too:
// then both majorities are needed.
//
// Newcomers have the votes of an epoch before they have its state. Where all who had steps are
// lost until then, no epoch begins: it would do them again, as if there had been none. Newcomers
// wait for all who may have some: a member that an earlier epoch has lost may live and come back.
class coordinator {
public:
    struct order {
        int link;
        coordinator_message::word what;
        std::size_t rank = 0;  // of an epoch
        message reason = {};   // of a refusal
    };

    explicit coordinator(const coordinator_rules& rules) : rules_(rules), acts_(rules.acts) {}

    // A process joins. `link` is the number of its connection.
    void join(int link, join_request request, time_point now) {
        const std::uint64_t id = request.said.self.id;
        forget_older(link, id);
        set_absence(id, absence::none);
        if (request.said.saw_end != 0 && request.said.ended != rules_.self)
            set_absence(request.said.ended, absence::dead);
        if (request.recorded.number > epoch_) {  // another process has coordinated since
            epoch_ = request.recorded.number;
            acts_ = false;
        }
        note_epoch(request.worked, worked_);
        note_epoch(request.recorded, recorded_);
        process* p = find(link);
        if (p == nullptr) p = &processes_.emplace_back(process{link, {}, true, false, false, now});
        newest_ = std::max(newest_, request.said.stamp);
        p->request = std::move(request);
        p->waits = true;
        p->since = now;
        advance(now);
    }

    // A process has found that these are gone: they have died, or left the job.
    void find_gone(std::span<const std::uint64_t> ids, time_point now) {
        for (const std::uint64_t id : ids)
            if (id != rules_.self && absence_of(id) != absence::dead)
                set_absence(id, absence::gone);
        advance(now);
    }

    // The launcher starts nothing any more, and so many of its processes live.
    void expect(std::size_t living, time_point now) {
        living_ = living;
        advance(now);
    }

    // The launcher has seen the end of the process that it has started as this rank.
    void has_died(std::int64_t started_as, time_point now) {
        note_death(started_as);
        advance(now);
    }

    // The process that this coordinator belongs to is in an epoch that another one has begun.
    void follow(std::uint64_t epoch, state_stamp stamp, std::vector<elastic_member> table,
                time_point now) {
        if (epoch <= epoch_) return;
        epoch_ = epoch;
        newest_ = std::max(newest_, stamp);
        acts_ = false;
        table_ = std::move(table);
        advance(now);
    }

    // The connection of a process has ended. A process that is only silent may live on, and see the
    // same of this one.
    void lose(int link, bool is_silent, time_point now) {
        for (std::size_t i = 0; i < processes_.size(); ++i) {
            if (processes_[i].link != link) continue;
            set_absence(processes_[i].id(), is_silent ? absence::lost : absence::dead);
            if (!is_silent) note_death(processes_[i].request.said.self.started_as);
            processes_.erase(processes_.begin() + std::ptrdiff_t(i));
            break;
        }
        advance(now);
    }

    // Time has passed.
    void advance(time_point now) {
        if (has_ended_) return end_job();
        tell_members(now);
        if (!any_waits() || is_running()) return forget_times();
        if (send_others_on()) return;
        if (since_ == never) since_ = now;
        const last_epoch last = find_last();
        if (all_have_come(last, now)) {
            if (all_have_finished(last)) return end_job();
            if (!has_state()) {
                if (all_others_are_gone()) return refuse_waiting(last);
            } else if (waiting().size() >= rules_.least) {
                return begin_epoch(last);
            }
            if (living_ < rules_.least) return refuse_waiting(last);
        } else if (!last.has_majority || (last.newest == nullptr && !acts_)) {
            send_on(last, now);
        }
        if (now - since_ <= rules_.join_span) return;
        if (all_have_finished(last)) return end_job();
        refuse_waiting(last);
    }

    // True while `advance` must be called from time to time.
    bool awaits_time() const {
        return any_waits() || std::ranges::any_of(processes_, [this](const process& p) {
                   return ending_since_ != never && !p.knows_end;
               });
    }

    std::uint64_t epoch() const { return epoch_; }
    // The members of the last epoch, as far as it is known here: those of an epoch that begins, and
    // those whom to ask for somebody who is sent on.
    const std::vector<elastic_member>& table() const { return table_; }
    // The head of an epoch's message, but for the rank and the job.
    const coordinator_message& head() const { return head_; }

    std::vector<order> take_orders() { return std::exchange(orders_, {}); }

private:
    static constexpr std::size_t most_named = 16;

    // One that is gone may have gone on in another epoch before. One that is dead has not.
    enum class absence : std::uint8_t { none, lost, gone, dead };

    struct process {
        int link;
        join_request request;
        bool waits, knows_end, knows_others;
        time_point since;
        std::uint64_t id() const { return request.said.self.id; }
    };
    // The epochs that may have been the last one that worked, and their votes.
    struct last_epoch {
        const told_epoch* newest = nullptr;
        bool has_majority = true, misses_only_lost = true;
        bool has(std::uint64_t id) const { return newest != nullptr && newest->has(id); }
    };

    // ---- the processes --------------------------------------------------------------------------

    process* find(int link) {
        for (process& p : processes_)
            if (p.link == link) return &p;
        return nullptr;
    }
    std::vector<const process*> waiting() const {
        std::vector<const process*> all;
        for (const process& p : processes_)
            if (p.waits) all.push_back(&p);
        return all;
    }
    bool any_waits() const {
        return std::ranges::any_of(processes_, [](const process& p) { return p.waits; });
    }
    // Those that wait, sorted, so that many members are looked up in little time.
    std::vector<std::uint64_t> waiting_ids() const {
        std::vector<std::uint64_t> ids;
        for (const process& p : processes_)
            if (p.waits) ids.push_back(p.id());
        std::ranges::sort(ids);
        return ids;
    }
    void set_absence(std::uint64_t id, absence how) {
        if (how == absence::none) absent_.erase(id);
        else absent_[id] = how;
    }
    absence absence_of(std::uint64_t id) const {
        const auto at = absent_.find(id);
        return at == absent_.end() ? absence::none : at->second;
    }
    // Another process may be started as the same rank.
    void note_death(std::int64_t started_as) {
        if (started_as >= 0 && started_as < std::int64_t(rules_.start)) died_.insert(started_as);
    }
    // Those whom the first epoch does not wait for.
    std::size_t known_deaths() const {
        return std::size_t(std::ranges::count_if(died_, [this](std::int64_t rank) {
            return std::ranges::none_of(processes_, [rank](const process& p) {
                return p.waits && p.request.said.self.started_as == rank;
            });
        }));
    }
    void note_epoch(const told_epoch& told, told_epoch& newest) {
        if (told == newest) return;  // as most tell
        may_have_steps_.insert(told.members.begin(), told.members.end());
        if (told.number > newest.number) newest = told;
    }
    // A process that comes again by another connection has lost the older one.
    void forget_older(int link, std::uint64_t id) {
        for (process& p : processes_)
            if (p.id() == id && p.link != link) leave_out(p, "it has come again");
        std::erase_if(processes_, [](const process& p) { return p.link < 0; });
    }
    void leave_out(process& p, std::string_view reason) {
        orders_.push_back({p.link, coordinator_message::try_another, 0, message(reason)});
        p.link = -1;
    }

    // ---- when an epoch begins -------------------------------------------------------------------

    // True while members of the epoch that was begun here work, and none has come back.
    bool is_running() const {
        bool any_works = false;
        for (const process& p : processes_) {
            if (p.waits && issued_.has(p.id())) return false;
            any_works = any_works || !p.waits;
        }
        return acts_ && any_works;
    }

    // An epoch has not worked if one of its members is here and has not recorded it.
    bool may_have_worked(const told_epoch& epoch) const {
        return std::ranges::none_of(processes_, [&](const process& p) {
            return p.waits && p.request.recorded.number < epoch.number && epoch.has(p.id());
        });
    }

    // While no epoch has worked, only the first coordinator begins one, or who inherits from it.
    bool may_begin_first(const told_epoch& newest) const {
        return rules_.acts || has_begun_ || absence_of(newest.served_by) == absence::dead;
    }

    last_epoch find_last() const {
        const told_epoch* worked = &worked_;
        for (const process& p : processes_)
            if (p.waits && p.request.worked.number > worked->number) worked = &p.request.worked;
        last_epoch last;
        const std::vector<std::uint64_t> here = waiting_ids();
        if (worked->number > 0) count_votes(*worked, here, last);
        // Many tell of the same one.
        std::set<std::pair<std::uint64_t, std::uint64_t>> counted;
        const auto count_if_later = [&](const told_epoch& epoch) {
            if (epoch.number > worked->number &&
                counted.emplace(epoch.number, epoch.served_by).second && may_have_worked(epoch))
                count_votes(epoch, here, last);
        };
        for (const process& p : processes_)
            if (p.waits) count_if_later(p.request.recorded);
        count_if_later(recorded_);
        count_if_later(issued_);
        if (worked->number == 0 && last.newest != nullptr && !may_begin_first(*last.newest))
            last.has_majority = false;
        return last;
    }
    void count_votes(const told_epoch& epoch, const std::vector<std::uint64_t>& here,
                     last_epoch& last) const {
        const bool by_launcher = epoch.served_by == 0;
        const bool votes_itself = by_launcher && rules_.self == 0;
        std::size_t come = 0, living = 0, gone = 0;
        for (const std::uint64_t id : epoch.members) {
            const absence how = absence_of(id);
            const bool comes = how != absence::dead && std::ranges::binary_search(here, id);
            come += comes ? 1 : 0;
            living += how == absence::dead ? 0 : 1;
            gone += !comes && how == absence::gone ? 1 : 0;
            if (!comes && how == absence::none) last.misses_only_lost = false;
        }
        // A launcher that is dead may have decided before, so that its vote is missed.
        const std::size_t all = living + (by_launcher ? 1 : 0);
        const std::size_t votes = come + (votes_itself ? 1 : 0);
        // Those who are gone may have begun another epoch before, in which others live on. They
        // have not if they are as many as those who are here: they would have needed more.
        const bool decides = votes_itself || votes + gone == all;
        const bool is_most = 2 * votes > all || (decides && 2 * votes == all);
        last.has_majority = last.has_majority && is_most && (come > 0 || living == 0);
        if (last.newest == nullptr || epoch.number > last.newest->number) last.newest = &epoch;
    }

    bool all_have_come(const last_epoch& last, time_point now) {
        if (last.newest == nullptr)
            return acts_ && (waiting().size() >= std::min(rules_.start - known_deaths(), living_) ||
                             now - since_ > rules_.start_span);
        if (!last.has_majority) {
            majority_since_ = never;
            return false;
        }
        if (majority_since_ == never) majority_since_ = now;
        // Nothing is left to do for those who have finished: they wait for the others.
        return last.misses_only_lost ||
               (!all_have_finished(last) &&
                now - majority_since_ > (acts_ ? rules_.late : rules_.rest));
    }

    bool all_have_finished(const last_epoch& last) const {
        bool any = false;
        for (const process* p : waiting()) {
            if (!last.has(p->id())) continue;
            if (p->request.said.finished == 0) return false;
            any = true;
        }
        return any;
    }

    // True if one that waits can go on from the steps of this job, or from those that an earlier
    // one has kept, or if there are none.
    bool has_state() const {
        return newest_.epoch == 0 || newest_.step == 0 ||
               std::ranges::any_of(processes_, [](const process& p) {
                   return p.waits && p.request.said.stamp.step >= 0;
               });
    }
    bool all_others_are_gone() const {
        return std::ranges::all_of(may_have_steps_, [&, here = waiting_ids()](std::uint64_t id) {
            const absence how = absence_of(id);
            return how == absence::dead || how == absence::gone ||
                   std::ranges::binary_search(here, id);
        });
    }

    // ---- orders ---------------------------------------------------------------------------------

    // Tells the members, once in an epoch, that it ends for one of them, or that others wait for
    // whom there is room.
    void tell_members(time_point now) {
        if (!acts_) return;
        const bool ends =
            std::ranges::any_of(issued_.members, [&, here = waiting_ids()](std::uint64_t id) {
                return absence_of(id) != absence::none || std::ranges::binary_search(here, id);
            });
        if (ends && ending_since_ == never) ending_since_ = now;
        const bool is_certain = std::ranges::any_of(
            issued_.members, [this](std::uint64_t id) { return absence_of(id) == absence::dead; });
        const bool ended = is_certain || (ends && now - ending_since_ > rules_.grace);
        const bool others = any_waits() && issued_.members.size() < rules_.most;
        for (process& p : processes_) {
            if (p.waits) continue;
            if (ended && !std::exchange(p.knows_end, true))
                orders_.push_back({p.link, coordinator_message::epoch_ends});
            else if (!ends && others && !std::exchange(p.knows_others, true))
                orders_.push_back({p.link, coordinator_message::others_wait});
        }
    }

    // Where another process coordinates, those who are not in its epoch need not wait here. True if
    // nobody waits then.
    bool send_others_on() {
        if (acts_ || table_.empty()) return false;
        for (process& p : processes_) {
            const auto is_it = [&](const elastic_member& m) { return m.id == p.id(); };
            if (p.waits && p.request.recorded.number < epoch_ &&
                std::ranges::none_of(table_, is_it))
                leave_out(p, "another one coordinates");
        }
        std::erase_if(processes_, [](const process& p) { return p.link < 0; });
        return !any_waits();
    }

    // Those who have waited here for long without a majority look for it elsewhere.
    void send_on(const last_epoch& last, time_point now) {
        for (process& p : processes_) {
            const std::int64_t hold = p.request.said.is_brief != 0 ? rules_.hold / 8 : rules_.hold;
            if (p.waits && now - p.since > hold) leave_out(p, why_none_begins(last));
        }
        std::erase_if(processes_, [](const process& p) { return p.link < 0; });
    }

    void end_job() {
        has_ended_ = true;
        for (const process* p : waiting())
            orders_.push_back({p->link, coordinator_message::job_has_ended});
        forget_waiting();
    }
    void refuse_waiting(const last_epoch& last) {
        for (const process* p : waiting())
            orders_.push_back({p->link, coordinator_message::refused, 0, why_none_begins(last)});
        forget_waiting();
    }
    message why_none_begins(const last_epoch& last) const {
        if (last.has_majority && !has_state())
            return text("no process is left that has the job's state, of step ", newest_.step);
        if (last.has_majority)
            return text("processes here: ", waiting().size(), ", needed: ", rules_.least,
                        text(" (HVD_ELASTIC_MIN_SIZE)",
                             living_ < rules_.least ? ", and nothing is started any more" : "",
                             missing_ranks(last)));
        const std::vector<std::uint64_t>&members = last.newest->members, here = waiting_ids();
        const auto come = std::ranges::count_if(
            members, [&](std::uint64_t id) { return std::ranges::binary_search(here, id); });
        return text("here are ", come, " of the ", members.size(), " ranks of epoch ",
                    last.newest->number, ", and more than half of those that may live are needed",
                    missing_ranks(last));
    }
    // Names those who have not come, as a launcher has numbered them.
    message missing_ranks(const last_epoch& last) const {
        std::vector<std::int64_t> missing;
        const auto name = [&](std::int64_t rank) {
            if (std::ranges::find(missing, rank) == missing.end()) missing.push_back(rank);
        };
        const std::vector<std::uint64_t> here = waiting_ids();
        for (const elastic_member& m : table_)
            if (!std::ranges::binary_search(here, m.id)) name(m.started_as);
        for (std::size_t rank = 0; last.newest == nullptr && rank < rules_.start; ++rank)
            if (std::ranges::none_of(processes_, [rank](const process& p) {
                    return p.request.said.self.started_as == std::int64_t(rank);
                }))
                name(std::int64_t(rank));
        message all;
        const std::size_t named = missing.size();
        for (std::size_t i = 0; i < std::min(named, most_named); ++i)
            all += text(i == 0 ? "; missing: HVD_RANK " : ", ", missing[i]);
        if (named > most_named) all += text(" and ", named - most_named, " others");
        return all;
    }
    void forget_waiting() {
        std::erase_if(processes_, [](const process& p) { return p.waits; });
        forget_times();
    }
    void forget_times() { since_ = majority_since_ = never; }

    // Members keep their order, and newcomers follow in the order in which they came.
    void begin_epoch(const last_epoch& last) {
        std::vector<process*> chosen;
        if (last.newest != nullptr)
            for (const std::uint64_t id : last.newest->members)
                for (process& p : processes_)
                    if (p.waits && p.id() == id) chosen.push_back(&p);
        for (process& p : processes_)
            if (p.waits && !last.has(p.id())) chosen.push_back(&p);
        if (chosen.size() > rules_.most) chosen.resize(rules_.most);
        ++epoch_;
        write_head(chosen);
        table_.clear();
        issued_ = {epoch_, rules_.self, {}};
        for (std::size_t rank = 0; rank < chosen.size(); ++rank) {
            table_.push_back(chosen[rank]->request.said.self);
            issued_.members.push_back(chosen[rank]->id());
            orders_.push_back({chosen[rank]->link, coordinator_message::epoch_begins, rank});
        }
        // Those who have not come are left out, and may come again as newcomers.
        for (process& p : processes_)
            if (!p.waits) leave_out(p, "it came too late");
        for (process* p : chosen) p->waits = p->knows_end = p->knows_others = false;
        std::erase_if(processes_, [](const process& p) { return p.link < 0; });
        acts_ = has_begun_ = true;
        ending_since_ = never;
        forget_times();
    }
    void write_head(const std::vector<process*>& chosen) {
        head_ = {};
        head_.what = coordinator_message::epoch_begins;
        head_.size = std::uint32_t(chosen.size());
        head_.epoch = epoch_;
        head_.served_by = rules_.self;
        head_.equal = 1;
        head_.stamp = chosen[0]->request.said.stamp;
        for (std::size_t rank = 0; rank < chosen.size(); ++rank) {
            const state_stamp& stamp = chosen[rank]->request.said.stamp;
            if (stamp != head_.stamp || stamp.epoch == 0) head_.equal = 0;
            if (stamp <= head_.stamp) continue;
            head_.stamp = stamp;
            head_.source = std::uint32_t(rank);
        }
    }

    const coordinator_rules rules_;
    bool acts_, has_begun_ = false, has_ended_ = false;
    std::size_t living_ = std::size_t(-1);  // no more processes come than there are these
    std::uint64_t epoch_ = 0;               // the newest that is known here
    std::vector<elastic_member> table_;
    // The last epoch that was begun here: as its members may tell of it, and as they were told.
    told_epoch issued_;
    coordinator_message head_;
    told_epoch worked_, recorded_;             // the newest that a process has told of
    state_stamp newest_;                       // of a state that a process has had
    std::set<std::uint64_t> may_have_steps_;   // members of all told epochs
    std::vector<process> processes_;           // those that are connected and have joined
    std::map<std::uint64_t, absence> absent_;  // those that are not any more
    std::set<std::int64_t> died_;  // ranks of the start, before the first epoch or later
    std::vector<order> orders_;
    time_point since_ = never;           // the next epoch is awaited
    time_point majority_since_ = never;  // its votes are there
    time_point ending_since_ = never;    // the last epoch ends for a member
};

}  // namespace hvd::inline v0::detail
