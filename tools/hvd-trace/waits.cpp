// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <cstdio>
#include <map>
#include <ostream>
#include <set>
#include <utility>

#include "records.hpp"

namespace hvd_trace {

namespace {

using hvd::detail::call_record;
using hvd::detail::is_message;
using hvd::detail::record_head;
using hvd::detail::tensor_record;

// A rank that is in a call, and has not looked for the others for so long, is held.
constexpr std::int64_t silence = 500'000'000;

// The numbers may come from a file that no rank has written.
std::int64_t between(std::int64_t time, std::int64_t later) {
    return std::int64_t(std::uint64_t(later) - std::uint64_t(time));
}

std::string seconds(std::int64_t nanoseconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g s", double(nanoseconds) * 1e-9);
    return text;
}

std::string list(const std::vector<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i)
        text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    return text;
}

std::string size_of(std::uint64_t bytes) {
    return " of " + std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

// The last calls of one rank on one communicator.
class rank_calls {
public:
    rank_calls(const process_records& process, const call_record& record)
        : process_(&process), record_(&record) {}

    int rank() const { return record_->head.rank; }
    const process_records& process() const { return *process_; }
    bool is_inside() const { return record_->is_inside(); }
    std::uint64_t begun() const { return record_->begun(); }

    // The ranks count the calls that all of them make: a message is that of two ranks.
    std::uint64_t order() const { return order_of(begun()); }
    std::uint64_t order_of(std::uint64_t number) const {
        std::uint64_t order = begun() - record_->messages;
        for (std::uint64_t n = begun(); n > number; --n)
            if (!is_message(record_->entry_of(n).kind)) --order;
        return order;
    }
    bool is_in_message() const { return is_inside() && is_message(last().kind); }

    // The collective call with this order, 0 if the record has lost it.
    std::uint64_t number_of(std::uint64_t order) const {
        const std::uint64_t kept = call_record::most_calls - 1;
        for (std::uint64_t n = begun(); n > 0 && begun() - n < kept; --n)
            if (!is_message(record_->entry_of(n).kind) && order_of(n) == order) return n;
        return 0;
    }

    const call_record::entry& last() const { return record_->entry_of(begun()); }

    std::string describe(std::uint64_t number) const {
        const call_record::entry& e = record_->entry_of(number);
        std::string text = name_of(e.kind);
        for (const call_record::name& n : record_->names)
            if (n.number == number) text += std::string(" '") + n.text + "'";
        if (e.fused) text += " of several tensors";
        return text + size_of(e.bytes);
    }
    bool differs(std::uint64_t number, const rank_calls& other, std::uint64_t others) const {
        const call_record::entry &mine = record_->entry_of(number),
                                 &theirs = other.record_->entry_of(others);
        const auto rule = hvd::detail::collective_table[std::size_t(mine.kind)].shapes;
        const bool is_equal = rule != hvd::detail::shape_rule::equal || mine.bytes == theirs.bytes;
        return mine.kind != theirs.kind || mine.fused != theirs.fused || !is_equal;
    }

    // Since when it has been in its last call; 0 if nobody knows.
    std::int64_t entered() const { return stamp().entered; }
    std::int64_t left() const { return stamp().left; }
    // For whom it says that it waits.
    std::vector<int> waits_for() const {
        if (record_->waits != begun()) return {};
        return {record_->ranks, record_->ranks + record_->rank_count};
    }
    // It is in a call, in which others have waited for so long, and does not look for them.
    bool is_silent(std::int64_t others) const {
        const std::int64_t last = std::max(record_->looked, entered());
        const std::int64_t span = entered() == 0 ? others : between(last, process_->time);
        return is_inside() && span > silence;
    }

private:
    call_record::stamp stamp() const {
        for (const call_record::stamp& s : record_->stamps)
            if (s.number == begun()) return s;
        return {};
    }

    const process_records* process_;
    const call_record* record_;
};

struct communicator_calls {
    std::string label;
    int size = 0;
    std::map<int, rank_calls> ranks;

    std::vector<int> without_record() const {
        std::vector<int> result;
        for (int r = 0; r < size; ++r)
            if (!ranks.contains(r)) result.push_back(r);
        return result;
    }
};
using group_key = std::pair<std::uint64_t, int>;

std::map<group_key, communicator_calls> groups_of(const std::vector<process_records>& processes) {
    std::map<group_key, communicator_calls> groups;
    for (const process_records& p : processes)
        for (const call_record& r : p.calls) {
            communicator_calls& group = groups[{r.head.key, r.head.size}];
            group.size = r.head.size;
            if (r.head.label[0] != 0) group.label = r.head.label;
            group.ranks.insert_or_assign(r.head.rank, rank_calls(p, r));
        }
    return groups;
}

std::string place(const rank_calls& r) {
    return "  rank " + std::to_string(r.rank()) + " (" + r.process().source +
           (r.process().is_stopped ? ", stopped" : "") + ") ";
}

std::string ago(const rank_calls& r, std::int64_t time) {
    return time == 0 ? "" : " " + seconds(between(time, r.process().time)) + " ago";
}

// Tells the collective in which some ranks wait, and those for whom.
class waiting_call {
public:
    waiting_call(const communicator_calls& group, std::ostream& out) : group_(group), out_(out) {
        for (const auto& [rank, calls] : group.ranks)
            if (calls.is_inside() && !calls.is_in_message() && calls.order() >= order_) {
                if (calls.order() > order_) model_ = &calls;
                order_ = calls.order();
            }
        for (const auto& [rank, calls] : group.ranks)
            if (calls.entered() != 0 && calls.is_inside() && calls.order() == order_)
                longest_ = std::max(longest_, between(calls.entered(), calls.process().time));
    }

    bool is_there() const { return model_ != nullptr; }

    void tell() const {
        const std::uint64_t number = model_->begun();
        out_ << "call " << order_ << ", " << model_->describe(number) << ":\n";
        std::vector<int> late, other, silent;
        for (const auto& [rank, calls] : group_.ranks) {
            const std::uint64_t here = calls.number_of(order_);
            if (calls.order() < order_) {
                late.push_back(rank);
                tell_late(calls);
            } else if (here != 0 && calls.differs(here, *model_, number)) {
                other.push_back(rank);
                out_ << place(calls) << "makes another call there: " << calls.describe(here)
                     << '\n';
            } else if (calls.order() > order_ || !calls.is_inside()) {
                out_ << place(calls) << "has done it\n";
            } else {
                if (calls.process().is_stopped || calls.is_silent(longest_)) silent.push_back(rank);
                tell_waiting(calls);
            }
        }
        const std::vector<int> unknown = group_.without_record();
        if (!unknown.empty()) out_ << "  " << list(unknown) << ": no record is given\n";
        const bool one_waits = !late.empty() || !other.empty() || !silent.empty();
        if (!late.empty()) conclude(late, "come to");
        if (!other.empty()) out_ << "=> " << list(other) << ": the call differs\n";
        if (late.empty() && !silent.empty())
            out_ << "=> " << list(silent) << (silent.size() == 1 ? " is" : " are")
                 << " in it, and held\n";
        if (!one_waits && !unknown.empty()) out_ << "=> see " << list(unknown) << '\n';
    }

private:
    void conclude(const std::vector<int>& ranks, const char* what) const {
        out_ << "=> " << list(ranks) << (ranks.size() == 1 ? " has" : " have") << " not " << what
             << " call " << order_ << ", " << model_->describe(model_->begun()) << '\n';
    }
    void tell_late(const rank_calls& r) const {
        out_ << place(r) << "has not come: ";
        if (r.begun() == 0) out_ << "it has made no call\n";
        else if (r.is_inside())
            out_ << "it is in " << r.describe(r.begun()) << ", its call " << r.order() << '\n';
        else
            out_ << "its last call is " << r.order() << ", " << r.describe(r.begun())
                 << ", which has ended" << ago(r, r.left()) << '\n';
    }
    void tell_waiting(const rank_calls& r) const {
        out_ << place(r)
             << (r.is_silent(longest_) || r.process().is_stopped ? "is in it" : "waits in it");
        if (r.entered() != 0) out_ << " for " << seconds(between(r.entered(), r.process().time));
        const std::vector<int> others = r.waits_for();
        if (!others.empty()) out_ << ", for " << list(others);
        if (r.is_silent(longest_))
            out_ << ", and does not look for the others: it computes, or is held";
        out_ << '\n';
    }

    const communicator_calls& group_;
    std::ostream& out_;
    const rank_calls* model_ = nullptr;
    std::uint64_t order_ = 0;
    std::int64_t longest_ = 0;  // for which one of the ranks has waited
};

void tell_messages(const communicator_calls& group, std::ostream& out) {
    for (const auto& [rank, calls] : group.ranks)
        if (calls.is_in_message()) {
            out << place(calls) << "is in " << calls.describe(calls.begun());
            const std::vector<int> others = calls.waits_for();
            if (!others.empty()) out << ", and waits for " << list(others);
            out << '\n';
        }
}

void tell_rest(const communicator_calls& group, std::ostream& out) {
    out << "no rank is in a collective call\n";
    for (const auto& [rank, calls] : group.ranks)
        if (calls.begun() == 0) out << place(calls) << "has made no call\n";
        else if (!calls.is_inside())
            out << place(calls) << "has ended call " << calls.order() << ", "
                << calls.describe(calls.begun()) << ago(calls, calls.left()) << '\n';
}

// A tensor in flight somewhere, and the ranks that have submitted it.
struct tensor_state {
    const tensor_record::entry* entry = nullptr;
    std::int64_t waited = 0;  // the longest time
    std::vector<int> ranks;
};

struct engine_tensors {
    int size = 0;
    std::map<int, std::pair<const process_records*, const tensor_record*>> ranks;

    std::map<std::string, tensor_state> in_flight() const {
        std::map<std::string, tensor_state> result;
        for (const auto& [rank, of_rank] : ranks)
            for (const tensor_record::entry& e : of_rank.second->entries)
                if (e.number != 0 && e.done == 0) {
                    tensor_state& state = result[e.name];
                    state.entry = &e;
                    state.waited =
                        std::max(state.waited, between(e.submitted, of_rank.first->time));
                    state.ranks.push_back(rank);
                }
        return result;
    }
    std::vector<int> missing(const tensor_state& state) const {
        std::vector<int> result;
        for (const auto& [rank, of_rank] : ranks)
            if (std::find(state.ranks.begin(), state.ranks.end(), rank) == state.ranks.end())
                result.push_back(rank);
        return result;
    }
};

// The tensor that a rank has submitted last.
void tell_last_tensor(int rank, const process_records& process, const tensor_record& r,
                      std::ostream& out) {
    const tensor_record::entry* last = nullptr;
    for (const tensor_record::entry& e : r.entries)
        if (e.number != 0 && (last == nullptr || e.number > last->number)) last = &e;
    out << "  rank " << rank << " (" << process.source << (process.is_stopped ? ", stopped" : "")
        << ") ";
    if (last == nullptr) out << "has submitted nothing\n";
    else
        out << "has submitted '" << last->name << "' last, its tensor " << last->number
            << (last->done != 0 ? ", which is complete\n" : ", which is in flight\n");
}

void tell_engine(const engine_tensors& engine, std::ostream& out) {
    constexpr std::size_t most = 10;
    std::size_t told = 0;
    std::set<int> late;
    std::vector<std::pair<std::string, tensor_state>> all;
    for (auto& [name, state] : engine.in_flight()) all.emplace_back(name, state);
    std::stable_sort(all.begin(), all.end(),
                     [](auto& a, auto& b) { return a.second.waited > b.second.waited; });
    out << (all.empty() ? "nothing is in flight\n" : "tensors in flight:\n");
    for (const auto& [name, state] : all) {
        const std::vector<int> missing = engine.missing(state);
        if (++told > most) break;
        out << "  '" << name << "', tensor " << state.entry->number << ", "
            << hvd::detail::name_of(state.entry->kind) << size_of(state.entry->bytes) << ", for "
            << seconds(state.waited) << ": submitted on " << list(state.ranks);
        if (!missing.empty()) out << ", and not on " << list(missing);
        out << '\n';
        late.insert(missing.begin(), missing.end());
    }
    if (all.size() > most) out << "  and " << all.size() - most << " more\n";
    for (const auto& [rank, of_rank] : engine.ranks)
        tell_last_tensor(rank, *of_rank.first, *of_rank.second, out);
    std::vector<int> unknown;
    for (int r = 0; r < engine.size; ++r)
        if (!engine.ranks.contains(r)) unknown.push_back(r);
    if (!unknown.empty()) out << "  " << list(unknown) << ": no record is given\n";
    if (!late.empty())
        out << "=> " << list({late.begin(), late.end()}) << (late.size() == 1 ? " has" : " have")
            << " not submitted '" << all.front().first << "'"
            << (all.size() > 1 ? " or others" : "") << ", "
            << hvd::detail::name_of(all.front().second.entry->kind)
            << size_of(all.front().second.entry->bytes) << '\n';
}

}  // namespace

void tell_waits(const std::vector<process_records>& processes, std::ostream& out) {
    std::map<group_key, engine_tensors> engines;
    for (const process_records& p : processes)
        for (const auto& r : p.tensors) {
            engine_tensors& engine = engines[{r->head.key, r->head.size}];
            engine.size = r->head.size;
            engine.ranks[r->head.rank] = {&p, r.get()};
        }
    for (const auto& [key, group] : groups_of(processes)) {
        out << (group.label.empty() ? "world" : group.label) << " of " << group.size
            << (group.size == 1 ? " rank: " : " ranks: ");
        const waiting_call waiting(group, out);
        if (waiting.is_there()) waiting.tell();
        else tell_rest(group, out);
        tell_messages(group, out);
        if (const auto found = engines.find(key); found != engines.end())
            tell_engine(found->second, out);
    }
}

}  // namespace hvd_trace
