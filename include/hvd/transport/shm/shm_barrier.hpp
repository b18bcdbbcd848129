// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../platform/process.hpp"
#include "../../protocol/header_check.hpp"
#include "../../protocol/message_check.hpp"
#include "../transport.hpp"
#include "shm_region.hpp"

namespace hvd::inline v0::detail {

// Ranks of one node wait for each other here, and show each other headers.
//
// All ranks synchronise at the same points, the steps: a rank says that it has arrived, and goes
// on once all ranks have. Data are shown before such a point and read after it. Between two steps
// ranks may also wait for each other's chunks, which they count.
//
// A rank that needs nothing from others at a step may go on alone: it leaves. If nobody leaves at a
// step, all ranks wait for all: they meet. Ranks that leave are some steps ahead of others at most.
class shm_barrier : public transport {
public:
    // `rank` is a rank of the region. Error texts have other numbers of the ranks, if these are
    // given.
    shm_barrier(const shm_region& region, int rank, const int* numbers = nullptr)
        : transport(rank, region.ranks()),
          number_(numbers != nullptr ? numbers[rank] : rank),
          numbers_(numbers),
          region_(region),
          slots_(region.slots()),
          sleepers_(region.all_sleepers()),
          crowded_(region.processors_each() == 0) {
        processors_each = region.processors_each();
    }

    void exchange_headers(const call_header& mine) override {
        show(mine);
        next_ = &shm_barrier::take_headers;
        arrive();
    }

    bool ready() override {
        if (peer_ >= 0) [[unlikely]]
            return message_arrived();
        for (int p = 0; p < size_; ++p)
            if (!arrived(p)) return false;
        return true;
    }

    // It sleeps until all have arrived, or one that is missing has left.
    sleep_end sleep(std::int64_t nanoseconds) override {
        bool left = false;
        const auto over = [&] {
            bool waits = false;
            for (int p = 0; p < size_ && !left; ++p)
                if (awaited(p)) {
                    waits = true;
                    left = has_left(p);
                }
            return !waits || left;
        };
        if (!over()) {
            sleepers_.sleep(nanoseconds, over);
            over();
        }
        return left ? sleep_end::peer_left : sleep_end::over;
    }

    bool hopeless() override {
        for (int p = 0; p < size_; ++p)
            if (gone(p)) return true;
        return is_elsewhere();
    }
    // True if the peer of a message has begun another call, for which it waits for this rank.
    [[gnu::cold]] bool is_elsewhere() const {
        return peer_ >= 0 && is_message_ &&
               slots_[peer_].steps[(steps_ + 1) & last_kept].step.load() == steps_ + 1 &&
               !message_arrived();
    }

    [[gnu::cold]] bool abandoned() override {
        bool any = false;
        for (int p = 0; p < size_; ++p) any = any || (p != rank_ && is_away(p));
        forget_processes();
        return any;
    }

    [[gnu::cold]] void tell_unmade(std::uint64_t context) noexcept override {
        slots_[rank_].unmade.store(context);
    }
    [[gnu::cold]] bool is_unmade(std::uint64_t context) override {
        bool any = false;
        for (int p = 0; p < size_; ++p) any = any || slots_[p].unmade.load() == context;
        return any;
    }

    [[gnu::cold]] void forget_processes() noexcept override {
        for (process_watch& watch : watches_) watch.forget();
    }

    [[gnu::cold]] std::vector<int> missing() override {
        std::vector<int> ranks;
        for (int p = 0; p < size_; ++p)
            if (awaited(p)) ranks.push_back(p);
        return ranks;
    }

    [[gnu::cold]] void fail(verdict reason) override {
        std::vector<int> missing;
        const message who = describe_missing(reason, missing, [](int p) { return p; });
        if (missing.empty() && reason == verdict::hopeless) refuse_other_call();
        if (missing.empty()) return;
        lost = true;
        throw_peer_error(found_late_, rank_,
                         text("hvd: ", own_entry().label(), " on rank ", rank_, ": ", who),
                         std::move(missing));
    }

    bool has_left(int peer) const { return slots_[peer].left.load() != 0; }

    // Names the ranks that are waited for, by the numbers that `number` gives them, and tells what
    // became of each. A rank that left because another one was gone is not to blame: the other one
    // is named in its place.
    template <class F>
    [[gnu::cold]] message describe_missing(verdict reason, std::vector<int>& missing, F number) {
        message who;
        std::vector<int> named;
        for (int p = 0; p < size_; ++p) {
            const bool is_gone = gone(p);
            if (!awaited(p) || (reason == verdict::hopeless && !is_gone)) continue;
            const int one = is_gone ? culprit_of(p) : p;
            if (is_gone && culprit_ < 0) culprit_ = one;
            bool is_new = true;
            for (const int other : named) is_new = is_new && other != one;
            if (!is_new) continue;
            const node_slot& slot = slots_[one];
            who += text(named.empty() ? "rank " : ", rank ", number(one));
            if (!is_gone) {
                who += " did not come in time";
                found_late_ = true;
            } else if (slot.left.load() != 0)
                who += text(
                    " left (",
                    std::string_view(slot.farewell, strnlen(slot.farewell, sizeof slot.farewell)),
                    ")");
            else {
                who += text(" died (process ", slot.process.load_relaxed(), ")");
                found_death = true;
            }
            named.push_back(one);
            missing.push_back(number(one));
        }
        return who;
    }

    // Afterwards the tensors of this rank are its caller's again. So it waits until nobody reaches
    // for them: for threads as long as it takes, since they compute; for processes a while, since a
    // process may have been stopped. After that the memory is taken away from it: it goes on with
    // shared pages that are no longer this rank's.
    void leave(std::string_view reason) noexcept override {
        region_.leave(rank_, reason, culprit_);
        const time_point limit = now() + tuning::reach_patience;
        bool is_reached = false;
        for (int p = 0; p < size_; ++p) {
            const node_slot& slot = slots_[p];
            while (p != rank_ && slot.reaches.load_in_order() != 0 && !is_dead(p) &&
                   (slot.process.load_relaxed() == 0 || now() < limit))
                sleep_for(tuning::sleep_time);
            is_reached = is_reached || (p != rank_ && slot.reaches.load_in_order() != 0 &&
                                        slot.process.load_relaxed() != 0 && !is_dead(p));
        }
        if (is_reached) region_.reachable().make_private();
        forget_processes();
    }

protected:
    static constexpr std::uint64_t last_kept = tuning::steps_kept - 1;

    // A step goes on by one of these functions in each round.
    using round = bool (shm_barrier::*)();

    bool advance() override { return (this->*next_)(); }

    bool take_headers() {
        const call_digest mine = digest_;
        agreed = (mine.signs & call_digest::open) == 0;
        for (int p = 0; p < size_; ++p) {
            const step_line& line = line_of(p);
            agreed = agreed && line.count == mine.count && line.rest == mine.rest &&
                     line.signs == mine.signs;
            headers[p] = &slots_[p].entry[calls_ & last_kept];
        }
        if (!agreed || slots_[rank_].entry[calls_ & last_kept].kind == collective::agree)
            look_at_shown_headers();
        return false;
    }

    [[gnu::cold]] void look_at_shown_headers() {
        check_shown_headers();
        if (!agreed && numbers_ == nullptr) look_for_failures();
    }
    // All ranks have arrived, and their headers are not alike.
    virtual void look_for_failures() {}

    // Nothing else reads the headers of the peers if their digests are that of this rank's.
    [[gnu::cold]] void check_shown_headers() const {
        for (int p = 0; p < size_; ++p)
            if (p != rank_ && !is_header(*headers[p])) refuse_shown_by(p);
    }
    bool has_left_in_order(int peer) const { return slots_[peer].left.load_in_order() != 0; }

    // A peer shows what no rank shows.
    [[gnu::cold, noreturn]] void refuse_shown_by(int peer) const {
        throw peer_error(number_,
                         text("hvd: ", own_entry().label(), " on rank ", number_, ": rank ",
                              number_of(peer), sent_other_bytes),
                         {number_of(peer)});
    }
    [[gnu::cold, noreturn]] void refuse_unread(int peer, int refusal) {
        throw peer_error(number_,
                         text("hvd: ", own_entry().label(), " on rank ", number_,
                              ": the system does not let it read the tensor of rank ",
                              number_of(peer), ": ", std::strerror(refusal)),
                         {number_of(peer)});
    }
    int number_of(int rank) const { return numbers_ != nullptr ? numbers_[rank] : rank; }

    // The last round of a step that reached for tensors: the peers are done with this rank's.
    bool finish() {
        if (region_.reachable().losses() != losses_) [[unlikely]]
            check_places();
        return false;
    }

    // Peers read the header itself only if its digest differs from theirs, or if they need more
    // than to know that all are alike.
    void show(const call_header& mine) {
        ++calls_;
        copy_header(slots_[rank_].entry[calls_ & last_kept], mine);
        digest_ = digest_of(mine);
        if (history_ != 0) digest_.rest = mixed(digest_.rest ^ history_);
        step_line& line = next_line();
        line.count = digest_.count;
        line.rest = digest_.rest;
        line.signs = digest_.signs;
        line.what = content::nothing;
    }

    // The line in which this rank shows its next step, and the one of the present step.
    step_line& next_line() const { return slots_[rank_].steps[(steps_ + 1) & last_kept]; }
    const step_line& line_of(int peer) const { return slots_[peer].steps[steps_ & last_kept]; }

    void arrive() {
        await_step();
        slots_[rank_].steps[steps_ & last_kept].step.store(steps_);
        if (sleepers_.are_there() && ready()) [[unlikely]]
            sleepers_.ring();
    }

    // The other ranks need no more from this one than what it shows. They may wait for it alone, or
    // for all.
    void arrive_alone(bool for_it_alone) { arrive_for(rank_, for_it_alone); }
    // This rank waits for that one alone.
    void arrive_for(int peer, bool for_it_alone = false) {
        await_step();
        slots_[rank_].steps[steps_ & last_kept].step.store(steps_);
        peer_ = peer;
        is_message_ = false;
        from_peer_ = &slots_[peer].steps[steps_ & last_kept].step;
        least_of_peer_ = steps_;
        if (sleepers_.are_there() && (for_it_alone || all_at(steps_))) [[unlikely]]
            sleepers_.ring();
    }
    // The same as if it had waited for all from the beginning.
    void await_others() {
        begin_alone();
        await_all_at(steps_);
    }

    // The header of this rank's call.
    const call_header& own_entry() const {
        return slots_[rank_].entry[(calls_ + (peer_ >= 0 && is_message_ ? 1 : 0)) & last_kept];
    }

    // For all ranks at a step that this one has arrived at.
    void await_all_at(std::uint64_t step) {
        awaited_ = offsetof(node_slot, steps) + (step & last_kept) * sizeof(step_line) +
                   offsetof(step_line, step);
        least_ = step;
    }
    bool all_at(std::uint64_t step) const {
        for (int p = 0; p < size_; ++p)
            if (slots_[p].steps[step & last_kept].step.load() < step) return false;
        return true;
    }

    // All ranks have brought as many chunks through this stage.
    bool all_have(int stage, std::uint64_t chunks) const {
        for (int p = 0; p < size_; ++p)
            if (slots_[p].chunks[stage].load() < chunks) return false;
        return true;
    }
    void await_chunks(int stage, std::uint64_t chunks) {
        awaited_ = offsetof(node_slot, chunks) + std::size_t(stage) * sizeof slots_->chunks[0];
        least_ = chunks;
    }
    void tell_chunks(int stage, std::uint64_t chunks) {
        slots_[rank_].chunks[stage].store(chunks);
        if (sleepers_.are_there() && all_have(stage, chunks)) [[unlikely]]
            sleepers_.ring();
    }

    // Runs f, which reads or writes tensors of other ranks, and arrives at the end of its step. If
    // a rank has left, its tensors may be gone, and f is not run. Then this rank does not arrive:
    // it has no result, and nobody takes its part for done. Its wait tells who has left. The same
    // if f returns false.
    template <class F>
    void reach(F f) {
        reached = true;
        if (run_reaching(f)) arrive();
        else await_step();
    }

    std::uint64_t step() const { return steps_; }

    // Writes where a tensor lies, as place number `index` of those that this rank shows, from 0 on.
    // They begin at `places`. Returns false if the peers can't reach the tensor.
    bool show_place(std::byte* places, std::size_t index, const std::byte* data,
                    std::size_t bytes) {
        if (index == 0) losses_ = region_.reachable().losses();
        const place where = region_.reachable().find(data, bytes);
        std::memcpy(places + index * sizeof where, &where, sizeof where);
        places_ = places;
        shown_ = index + 1;
        return where || bytes == 0;
    }

    // ---- messages -------------------------------------------------------------------------------

    // The header of a message lies where that of the next call will: its two ranks have read it
    // before they make that call.
    call_header& entry_of_message(int rank) const {
        return slots_[rank].entry[(calls_ + 1) & last_kept];
    }

    std::uint64_t progress_of(int peer) const { return region_.progress(peer, rank_).load(); }
    void tell_progress(int peer, std::uint64_t progress) {
        region_.progress(rank_, peer).store(progress);
        if (sleepers_.are_there()) [[unlikely]]
            sleepers_.ring();
    }
    // The next round begins when the peer has come so far. It ends with begin_alone().
    void await_progress(int peer, std::uint64_t progress) {
        peer_ = peer;
        is_message_ = true;
        from_peer_ = &region_.progress(peer, rank_);
        least_of_peer_ = progress;
    }
    // From now on no peer is waited for.
    void begin_alone() { peer_ = -1; }

    // Runs f, which reads a tensor of that rank, unless it has left.
    template <class F>
    bool reach_for(int peer, F f) {
        reached = true;
        const reaching guard(slots_[rank_].reaches);
        if (has_left_in_order(peer)) return false;
        f();
        return true;
    }

    const int number_;
    const int* const numbers_;  // of all ranks, for error texts; null: their own
    round next_ = &shm_barrier::finish;
    const shm_region region_;
    node_slot* const slots_;
    sleepers& sleepers_;
    const bool crowded_;
    std::uint64_t steps_ = 0, calls_ = 0;
    std::uint64_t history_ = 0;  // of the calls that ranks may have left: see shm_departures

    // The mixer of splitmix64. Digests are sums, and no sum of two histories cancels.
    static std::uint64_t mixed(std::uint64_t z) {
        z += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

private:
    struct reaching {
        atomic<std::uint32_t>& flag;
        explicit reaching(atomic<std::uint32_t>& flag_of) : flag(flag_of) { flag.exchange(1); }
        reaching(const reaching&) = delete;
        ~reaching() { flag.store(0); }
    };

    template <class F>
    bool run_reaching(F f) {
        const reaching guard(slots_[rank_].reaches);
        for (int p = 0; p < size_; ++p)
            if (has_left_in_order(p)) return false;
        return f();
    }

    // This rank's memory has been taken away from the peers, by another of its communicators that
    // was given up. If it was memory of this call, the peers have written to the wrong pages.
    [[gnu::cold]] void check_places() {
        for (std::size_t i = 0; i < shown_; ++i) {
            place p;
            std::memcpy(&p, places_ + i * sizeof p, sizeof p);
            if (region_.reachable().has_lost(p))
                throw peer_error(number_,
                                 text("hvd: ", own_entry().label(), " on rank ", number_,
                                      ": another communicator with the same arena was "
                                      "given up during the call"),
                                 {});
        }
    }

    void await_step() {
        ++steps_;
        awaited_ = offsetof(node_slot, steps) + (steps_ & last_kept) * sizeof(step_line) +
                   offsetof(step_line, step);
        least_ = steps_;
    }
    bool message_arrived() const { return from_peer_->load() >= least_of_peer_; }

    [[gnu::cold]] void refuse_other_call() {
        if (!is_elsewhere()) return;
        const call_header& theirs = entry_of_message(peer_);
        lost = true;
        if (!is_header(theirs)) refuse_shown_by(peer_);
        throw_message_difference(rank_, own_entry(), theirs, field::collective);
    }

    // True unless this rank waits for the peer.
    bool arrived(int peer) const {
        if (peer_ >= 0) [[unlikely]]
            return peer != peer_ || message_arrived();
        const auto* const slot = reinterpret_cast<const std::byte*>(slots_ + peer);
        return reinterpret_cast<const atomic<std::uint64_t>*>(slot + awaited_)->load() >= least_;
    }

    // True if this rank waits for a peer: one that has not arrived, or one that has left or died,
    // where this rank could not arrive.
    bool awaited(int peer) {
        return peer != rank_ && (!arrived(peer) || (!arrived(rank_) && is_away(peer)));
    }
    // A rank may arrive before it leaves or ends. So its arrival is looked at afterwards.
    bool gone(int peer) { return awaited(peer) && is_away(peer) && awaited(peer); }

    bool is_away(int peer) { return has_left(peer) || is_dead(peer); }

    bool is_dead(int peer) {
        const node_slot& slot = slots_[peer];
        const std::int64_t process = slot.process.load_relaxed();
        return process > 0 && watches_[std::size_t(peer)].has_ended(process, slot.started);
    }

    // The rank for whose sake a rank is gone: itself, or the one that it left for.
    int culprit_of(int peer) const {
        for (int steps = 0; steps < size_ && has_left(peer); ++steps) {
            const int next = slots_[peer].culprit;
            if (next < 0 || next >= size_) break;
            peer = next;
        }
        return peer;
    }

    table<process_watch> watches_{std::size_t(size_)};  // by rank
    int culprit_ = -1;                                  // the rank for whose sake this one gives up
    bool found_late_ = false;                           // a rank that is there did not come in time
    int peer_ = -1;                                     // the only rank that is waited for
    bool is_message_ = false;                           // in a message
    const atomic<std::uint64_t>* from_peer_ = nullptr;  // what is waited for there, and
    std::uint64_t least_of_peer_ = 0;                   // its least value
    std::size_t awaited_ = 0;            // what is waited for: a counter of each slot, and
    std::uint64_t least_ = 0;            // its least value
    call_digest digest_;                 // of the present call's header
    const std::byte* places_ = nullptr;  // that this rank shows
    std::size_t shown_ = 0;              // the number of them
    std::uint64_t losses_ = 0;           // of parts of segments, when the places were found
};

}  // namespace hvd::inline v0::detail
