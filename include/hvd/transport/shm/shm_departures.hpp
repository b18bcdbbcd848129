// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../protocol/agreement.hpp"
#include "shm_barrier.hpp"

namespace hvd::inline v0::detail {

// A rank leaves a call at whose step it needs nothing from others any more. It is some steps ahead
// of others at most.
//
// If the call then fails on another rank, the ranks that had left are told later: at the next step
// at which nobody leaves, so that all wait for all. A rank on which a call has failed leaves none
// until then, nor does a rank that learns, when it begins a call, that there was a failure. A rank
// that finds an earlier failure in a call that others may have left ends that call well, and is
// told with them.
//
// Ranks that leave for the sake of different roots may wait for nobody with whom they disagree. So
// what a rank shows has a history of such calls. Where the histories differ, the headers tell the
// call: they stay as long as needed.
class shm_departures : public shm_barrier {
public:
    using shm_barrier::shm_barrier;

    [[gnu::cold]] void note_failure() noexcept override {
        if (apart_ == calls_) note(calls_, true, what_of(std::current_exception()));
    }

    // It looks at calls that all ranks have begun, and waits for none.
    [[gnu::cold]] message untold() override {
        const difference earliest = find_difference(last_begun_by_all(), nullptr);
        ++calls_;  // records are looked at in the next call
        const failure_of_rank first = first_failure();
        const bool is_found = earliest.what && earliest.call < first.call;
        if (!is_found && (first.count == 0 || has_thrown(first))) return {};
        return text("hvd: rank ", rank_, " was not told before the end of its communicator: ",
                    what_of(is_found ? earliest.what : failure_for(first, nullptr)));
    }

protected:
    // A rank that does not know of all failures meets the others: they all learn of them then.
    bool has_to_meet() const {
        return failed_ != 0 || region_.failures().count.load_relaxed() != told_;
    }

    const call_header* header_of(int peer) const { return &slots_[peer].entry[calls_ & last_kept]; }
    bool agrees_with(int peer) const {
        const step_line &line = line_of(peer), &mine = line_of(rank_);
        return line.count == mine.count && line.rest == mine.rest && line.signs == mine.signs &&
               (mine.signs & call_digest::open) == 0;
    }

    // Some rank may have left the present call. Ranks that leave for the sake of different roots
    // wait for nobody with whom they disagree: their later lines show it.
    void go_apart() {
        apart = true;
        if (apart_ == calls_) return;
        apart_ = calls_;
        step_of_[calls_ & last_kept] = steps_;
        const call_header& mine = slots_[rank_].entry[calls_ & last_kept];
        history_ =
            mixed(history_ ^ (std::uint64_t(mine.kind) + 1) << 32 ^ std::uint32_t(mine.root));
    }
    // All ranks have arrived at this step.
    void has_met() { known_ = steps_; }

    // The end of such a step: this rank waits until nobody needs the place of its next line any
    // more.
    bool await_room() {
        begin_alone();
        if (steps_ + 1 <= known_ + tuning::most_ahead) return false;
        room_at_ = steps_ + 1 - tuning::most_ahead / 2;
        await_all_at(room_at_);
        next_ = static_cast<round>(&shm_departures::room_is_made);
        return true;
    }
    bool room_is_made() {
        known_ = room_at_;
        for (int p = 0; p < size_; ++p) {
            const step_line &theirs = slots_[p].steps[room_at_ & last_kept],
                            &mine = slots_[rank_].steps[room_at_ & last_kept];
            const std::uint64_t later = steps_ - room_at_;
            if (theirs.rest != mine.rest && calls_ > later) note_difference(calls_ - later);
        }
        return false;
    }

private:
    struct failure_of_rank {
        int rank = -1, count = 0;  // the first rank, and how many there are
        std::uint64_t call = ~std::uint64_t(0);
    };
    struct difference {
        std::uint64_t call = 0;
        std::exception_ptr what;  // null: there is none
    };

    // All are told when they meet. Until then this rank leaves no call, and notes no other failure.
    [[gnu::cold]] void note(std::uint64_t call, bool is_thrown, std::string_view reason) noexcept {
        if (failed_ != 0) return;
        failed_ = call;
        record_ ^= 1;
        late_record& r = slots_[rank_].late[record_];
        const call_header& mine = slots_[rank_].entry[call & last_kept];
        r.found.store(0);
        r.failed = call;
        r.is_thrown = is_thrown;
        r.kind = mine.kind;
        copy_text(r.name, mine.name, sizeof r.name);
        store(r.reason, reason);
        r.found.store(calls_);
        history_ = mixed(history_ ^ (std::uint64_t(rank_) + 1) << 32 ^ calls_);
        region_.failures().count.add(1);
    }
    // An earlier call went wrong, which is no failure of the present one.
    [[gnu::cold]] void note_difference(std::uint64_t last) {
        if (failed_ != 0 || first_failure().count > 0) return;
        const difference found = find_difference(last, nullptr);
        if (found.call > 0) note(found.call, false, what_of(found.what));
        else if (!found.what) since_ = last + 1;
    }
    bool has_thrown(const failure_of_rank& first) const {
        return failed_ == first.call && slots_[rank_].late[record_].is_thrown;
    }

    // A rank's record of what is told next. It writes there again when all have met twice since.
    const late_record* record_of(int peer) const {
        for (const late_record& r : slots_[peer].late) {
            const std::uint64_t found = r.found.load();
            if (found > met_ && found < calls_) return &r;
        }
        return nullptr;
    }
    failure_of_rank first_failure() const {
        failure_of_rank first;
        for (int p = 0; p < size_; ++p)
            if (const late_record* const r = record_of(p)) {
                ++first.count;
                if (r->failed < first.call) first.rank = p, first.call = r->failed;
            }
        return first;
    }

    // All ranks have arrived, and their headers are not alike. Those that meet find the same.
    [[gnu::cold]] void look_for_failures() override {
        for (int p = 0; p < size_; ++p)
            if (line_of(p).what == content::left) go_apart();
        if (apart_ == calls_) return note_difference(calls_ - 1);
        const failure_of_rank first = first_failure();
        if (first.count > 0) tell_failure(first);
        else late = find_difference(calls_ - 1, "it is found in ").what;
        history_ = 0;
        met_ = calls_;
        since_ = calls_ + 1;
    }

    [[gnu::cold]] void tell_failure(const failure_of_rank& first) {
        told_ += std::uint64_t(first.count);
        try {
            late =
                has_thrown(first) ? failure_of_others(first) : failure_for(first, "it is told in ");
        } catch (...) {  // no memory for a text
            late = std::current_exception();
        }
        failed_ = 0;
    }

    // Says in which call this rank is told. `how` is null at the end of the communicator.
    message note(const char* how) const {
        if (how == nullptr) return {};
        const call_header& mine = own_entry();
        return text(" (this rank had left that call; ", how, mine.label(),
                    mine.refused ? ", which this rank refuses: " : "",
                    mine.refused ? mine.text : "", ")");
    }
    message label_of(const late_record& r) const {
        if (has_entries_of(r.failed)) return slots_[rank_].entry[r.failed & last_kept].label();
        call_header failed;
        failed.kind = r.kind;
        copy_text(failed.name, r.name, sizeof r.name);
        return failed.label();
    }

    // For a rank that has thrown it before. All ranks may have.
    std::exception_ptr failure_of_others(const failure_of_rank& first) const {
        std::vector<int> others;
        message ranks;
        for (int p = 0; p < size_; ++p) {
            const late_record* const r = record_of(p);
            if (p == rank_ || (r != nullptr && r->failed == first.call && r->is_thrown)) continue;
            ranks += text(others.empty() ? "rank " : ", rank ", p);
            others.push_back(p);
        }
        if (others.empty()) return nullptr;
        return std::make_exception_ptr(
            peer_error(rank_,
                       text("hvd: ", own_entry().label(), " on rank ", rank_, ": ", ranks,
                            " had left an earlier call, and ", others.size() == 1 ? "is" : "are",
                            " told in this one that it failed: ", label_of(*record_of(first.rank))),
                       others));
    }

    // For a rank that had left it. The headers tell most failures, in the same words as at once.
    std::exception_ptr failure_for(const failure_of_rank& first, const char* how) {
        if (const std::exception_ptr same = difference_in(first.call, how)) return same;
        const late_record& r = *record_of(first.rank);
        return std::make_exception_ptr(late_error<peer_error>(
            rank_,
            text("hvd: ", label_of(r), " on rank ", rank_, ": rank ", first.rank, " failed in it: ",
                 std::string_view(r.reason, strnlen(r.reason, sizeof r.reason)), note(how)),
            std::vector<int>{first.rank}));
    }

    // The headers of all ranks in that call are still there.
    bool has_entries_of(std::uint64_t call) const { return call + tuning::most_ahead + 2 > calls_; }

    // The first call, up to that one, in which the ranks differ, and have not been told. All have
    // begun that one.
    [[gnu::cold]] difference find_difference(std::uint64_t last, const char* how) {
        try {
            for (std::uint64_t call = since_; call <= last; ++call) {
                if (!has_entries_of(call)) call = calls_ - tuning::most_ahead - 1;
                if (std::exception_ptr what = difference_in(call, how)) return {call, what};
            }
        } catch (...) {  // no memory for a text
            return {0, std::current_exception()};
        }
        return {};
    }
    // The last such call that ranks may have left.
    [[gnu::cold]] std::uint64_t last_begun_by_all() const {
        for (std::uint64_t call = apart_; call >= since_ && has_entries_of(call); --call)
            if (all_at(step_of_[call & last_kept])) return call;
        return 0;
    }

    // The headers of a call as the exception that they make necessary.
    [[gnu::cold]] std::exception_ptr difference_in(std::uint64_t call, const char* how) {
        if (!has_entries_of(call)) return nullptr;
        for (int p = 0; p < size_; ++p) {
            shown_[std::size_t(p)] = &slots_[p].entry[call & last_kept];
            if (!is_header(*shown_[std::size_t(p)])) return nullptr;
        }
        try {
            check_headers(rank_, shown_.data(), size_);
        } catch (const mismatch_error& e) {
            const auto values = e.table<>();
            return std::make_exception_ptr(late_error<mismatch_error>(
                rank_, text(e.what(), note(how)), e.field(),
                slice<const mismatch_error::entry>{values.data(), values.size()}));
        } catch (const peer_error& e) {
            return std::make_exception_ptr(late_error<peer_error>(
                rank_, text(e.what(), note(how)), peers_of(std::current_exception())));
        } catch (...) {
            return std::current_exception();
        }
        return nullptr;
    }

    table<const call_header*> shown_{std::size_t(size_)};  // by rank
    std::uint64_t apart_ = 0;                              // the last call that ranks may have left
    std::uint64_t step_of_[tuning::steps_kept] = {};       // of those calls, where they may be left
    std::uint64_t known_ = 0;                              // a step at which all have arrived
    std::uint64_t room_at_ = 0;                            // the next such step
    std::uint64_t failed_ = 0;  // the call that failed, as this rank has noted; 0: none
    std::uint64_t since_ = 1;   // the first call whose failure has not been told
    std::uint64_t met_ = 0;     // the last call in which all had something to be told
    std::uint64_t told_ = 0;    // failures of all ranks that all have been told
    unsigned record_ = 0;       // of slot.late, the last one
};

}  // namespace hvd::inline v0::detail
