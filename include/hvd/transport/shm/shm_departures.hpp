// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "shm_barrier.hpp"

namespace hvd::inline v0::detail {

// A rank leaves a call at whose step it needs nothing from others any more. It is some steps ahead
// of others at most.
//
// If the call then fails on another rank, the ranks that had left are told later: at the next step
// at which nobody leaves, so that all wait for all. A rank on which a call has failed leaves none
// until then, nor does a rank that learns, when it begins a call, that there was a failure.
//
// Ranks that leave for the sake of different roots may wait for nobody with whom they disagree. So
// what a rank shows has a history of such calls. Where the histories differ, the headers tell the
// call: they stay as long as needed.
class shm_departures : public shm_barrier {
public:
    using shm_barrier::shm_barrier;

    // Ranks that have left the call are told when all meet. Until then this rank leaves no call.
    [[gnu::cold]] void note_failure() noexcept override {
        const std::uint64_t found = std::exchange(found_, 0);
        if (apart_ != calls_ || failed_ != 0) return;
        failed_ = found != 0 ? found : calls_;
        record_ ^= 1;
        late_record& r = slots_[rank_].late[record_];
        r.found.store(0);
        r.until.store(~std::uint64_t(0));
        r.failed = failed_;
        store(r.reason, what_of(std::current_exception()));
        r.found.store(calls_);
        history_ = (history_ + std::uint64_t(rank_) + 1) * history_factor + calls_;
        region_.failures().count.add(1);
    }

    [[gnu::cold]] message untold() override {
        ++calls_;
        const failure_of_rank first = first_failure();
        --calls_;
        if (first.rank < 0 || failed_ != 0) return {};
        return text("hvd: rank ", rank_, " was not told before the end of its communicator: ",
                    what_of(failure_for(first, nullptr)));
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
        const call_header& mine = slots_[rank_].entry[calls_ & last_kept];
        history_ =
            (history_ + std::uint32_t(mine.root) + 1) * history_factor + std::uint64_t(mine.kind);
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
            if (theirs.rest != mine.rest && calls_ > later && !late)
                find_difference(calls_ - later);
        }
        return false;
    }

private:
    static constexpr std::uint64_t history_factor = 0x9e3779b97f4a7c15u;

    struct failure_of_rank {
        int rank = -1, count = 0;  // the first rank, and how many there are
        std::uint64_t call = ~std::uint64_t(0);
    };

    // The record of a rank that holds for the present call.
    const late_record* record_of(int peer) const {
        for (const late_record& r : slots_[peer].late) {
            const std::uint64_t until = r.until.load(), found = r.found.load();
            if (found != 0 && found < calls_ && calls_ <= until) return &r;
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
        const failure_of_rank first = first_failure();
        if (first.count == 0) find_difference(calls_ - 1);
        if (apart_ == calls_) return;
        if (first.count > 0) tell_failure(first);
        history_ = 0;
        since_ = calls_ + 1;
    }

    [[gnu::cold]] void tell_failure(const failure_of_rank& first) {
        const bool seen = failed_ == first.call;
        told_ += std::uint64_t(first.count);
        try {
            late = seen ? failure_of_others(first) : failure_for(first, "it is told in ");
        } catch (...) {  // no memory for a text
            late = std::current_exception();
        }
        if (failed_ != 0) slots_[rank_].late[record_].until.store(calls_);
        failed_ = 0;
    }

    // Says in which call this rank is told. `how` is null at the end of the communicator.
    message note(const char* how) const {
        if (how == nullptr) return {};
        return text(" (this rank had left that call; ", how, own_entry().label(), ")");
    }

    // For a rank that has thrown it before. All ranks may have.
    std::exception_ptr failure_of_others(const failure_of_rank& first) const {
        std::vector<int> others;
        message ranks;
        for (int p = 0; p < size_; ++p) {
            const late_record* const r = record_of(p);
            if (p == rank_ || (r != nullptr && r->failed == first.call)) continue;
            ranks += text(others.empty() ? "rank " : ", rank ", p);
            others.push_back(p);
        }
        if (others.empty()) return nullptr;
        const call_header& failed = slots_[rank_].entry[first.call & last_kept];
        return std::make_exception_ptr(
            peer_error(rank_,
                       text("hvd: ", own_entry().label(), " on rank ", rank_, ": ", ranks,
                            " had left an earlier call, and ", others.size() == 1 ? "is" : "are",
                            " told in this one that it failed: ", failed.label()),
                       others));
    }

    // For a rank that had left it. The headers tell most failures, in the same words as at once.
    std::exception_ptr failure_for(const failure_of_rank& first, const char* how) {
        if (const std::exception_ptr same = difference_in(first.call, how)) return same;
        const late_record& r = *record_of(first.rank);
        const message label = has_entries_of(first.call)
                                  ? slots_[rank_].entry[first.call & last_kept].label()
                                  : message("a call");
        return std::make_exception_ptr(peer_error(
            rank_,
            text("hvd: ", label, " on rank ", rank_, ": rank ", first.rank, " failed in it: ",
                 std::string_view(r.reason, strnlen(r.reason, sizeof r.reason)), note(how)),
            {first.rank}));
    }

    // The headers of all ranks in that call are still there.
    bool has_entries_of(std::uint64_t call) const { return call + tuning::most_ahead + 2 > calls_; }

    // Looks for the first call, up to that one, in which the ranks differ, and have not been told.
    [[gnu::cold]] void find_difference(std::uint64_t last) {
        try {
            for (std::uint64_t call = since_; call <= last && !late; ++call) {
                if (!has_entries_of(call)) call = calls_ - tuning::most_ahead - 1;
                if ((late = difference_in(call, "it is found in "))) found_ = call;
            }
        } catch (...) {  // no memory for a text
            late = std::current_exception();
        }
        if (late) agreed = false;
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
            return std::make_exception_ptr(mismatch_error(
                rank_, text(e.what(), note(how)), e.field(), {values.data(), values.size()}));
        } catch (const peer_error& e) {
            return std::make_exception_ptr(
                peer_error(rank_, text(e.what(), note(how)), peers_of(std::current_exception())));
        } catch (...) {
            return std::current_exception();
        }
        return nullptr;
    }

    table<const call_header*> shown_{std::size_t(size_)};  // by rank
    std::uint64_t apart_ = 0;                              // the last call that ranks may have left
    std::uint64_t known_ = 0;                              // a step at which all have arrived
    std::uint64_t room_at_ = 0;                            // the next such step
    std::uint64_t failed_ = 0;  // the call that failed here and is untold; 0: none
    std::uint64_t found_ = 0;   // an earlier call that was found to have failed; 0: none
    std::uint64_t since_ = 1;   // the first call whose failure has not been told
    std::uint64_t told_ = 0;    // failures of all ranks that all have been told
    unsigned record_ = 0;       // of slot.late, the last one
};

}  // namespace hvd::inline v0::detail
