// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <string_view>

#include "../core/tuning_options.hpp"
#include "../observe/data_path.hpp"
#include "../platform/clock.hpp"
#include "operation.hpp"

namespace hvd::inline v0::detail {

enum class verdict { expired, hopeless };

// Keeps the exception of a reduction. After the first one nothing is reduced any more.
template <class F>
void keep_failure(std::exception_ptr& failure, F reduce) {
    if (failure) return;
    try {
        reduce();
    } catch (...) {
        failure = std::current_exception();
    }
}

// Moves the bytes of calls between the ranks of a communicator.
//
// A transport is a set of steps. A step is begun by exchange_headers, begin or one of the five
// primitives, and goes on in rounds: once ready() is true, next() takes what has come and begins
// the next round, until it returns false. The driver of the transport decides how to wait in
// between. Arrays and blocks that a step is given stay as they are until it is over.
//
// The functions are virtual, so that each collective is compiled once for all transports. A virtual
// call costs far less than the synchronisation that it begins.
class transport {
    table<const call_header*> header_table_;
    table<const std::byte*> input_table_;

public:
    transport(int rank, int size)
        : header_table_(std::size_t(size)),
          input_table_(std::size_t(size)),
          headers(header_table_.data()),
          rank_(rank),
          size_(size),
          sends_(std::size_t(size)),
          receives_(std::size_t(size)),
          inputs_(input_table_.data()) {}
    virtual ~transport() = default;
    transport(const transport&) = delete;
    transport& operator=(const transport&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    const tuning_options& tuned() const { return tuned_; }

    // Makes the memory that these thresholds need, between calls. The present ones still hold.
    // @throws std::bad_alloc
    virtual void prepare(const tuning_options&) {}
    // Takes thresholds, between calls, for which the memory was made.
    virtual void retune(const tuning_options& t) noexcept { tuned_ = t; }

    // Every rank shows its header to all; then `headers` has the headers of all ranks.
    virtual void exchange_headers(const call_header& mine) = 0;

    // Chooses the algorithm of a call, from what is equal on all ranks. True if the algorithm takes
    // the tensors of a list from where they lie: then nothing is packed.
    virtual bool choose(const operation&) { return false; }
    // Begins a call whose algorithm was chosen, by its headers. An algorithm may move data with
    // them. If `carries` says so, the data was packed before.
    virtual void begin(const operation& op) { exchange_headers(op.entry); }

    // ---- primitives: no rank sends to itself, but for reductions --------------------------------

    // send[p] goes to rank p and fills its receive[me]. Sizes agree.
    virtual void alltoallv(const block* send, const block* receive) = 0;
    // Reduces send[me] of every rank, in rank order.
    virtual void reduce_scatter(const block* send, const reduction& job) = 0;
    // `mine` goes to all others; receive[p] is filled by rank p.
    virtual void allgather(const block& mine, const block* receive) {
        for (block& b : sends_) b = mine;
        sends_[std::size_t(rank_)] = {};
        alltoallv(sends_.data(), receive);
    }
    // `whole` is sent by the root, and filled on all others.
    virtual void broadcast(const block& whole, int root) {
        lay_out_broadcast(whole, root);
        alltoallv(sends_.data(), receives_.data());
    }
    // Returns what a rank gives to this one, where it has come with the headers (`brought`). It is
    // asked for in the first step of a call, and stays until the third one begins.
    virtual block brought_from(const operation&, int) { return {}; }
    // True if a rank's part has come so, in a call that is apart.
    virtual bool has_brought(int) { return false; }
    // Begins a step in which nothing moves, since that has come.
    virtual void skip() {}
    // Reduces elements of a group that have come so, from number `first` on.
    void reduce_brought(const operation& op, const reduction_group& g, std::size_t first,
                        std::size_t count, std::byte* out) {
        const std::size_t at = g.offset + first * g.element_bytes;
        for (int p = 0; p < size_; ++p)
            inputs_[p] = (p == rank_ ? op.in : brought_from(op, p).data) + at;
        reduce_inputs(op, g, count, out);
    }

    // Reduces the groups of an operation, of which there is one at least, to all ranks.
    virtual void allreduce(operation& op) {
        by_groups_ = &op;
        group_ = 0;
        begin_group();
    }

    // ---- messages: this rank and one other take part --------------------------------------------

    // Shows the header to that rank alone; then headers[peer] is the header of its next call.
    virtual void exchange_header(const call_header& mine, int peer) = 0;
    // Sends the block to the peer, or fills it from there. Both ranks give the same size.
    virtual void move_one(const block& b, int peer, bool sends) {
        for (block& other : sends_) other = {};
        for (block& other : receives_) other = {};
        (sends ? sends_ : receives_)[std::size_t(peer)] = b;
        alltoallv(sends_.data(), receives_.data());
    }

    virtual bool ready() = 0;
    // Goes on when ready: false if the step is over. After an exception the ranks are no longer in
    // step, so that nothing more can be agreed on.
    bool next() {
        try {
            return advance() || (by_groups_ != nullptr && next_of_groups());
        } catch (...) {
            give_up();
            throw;
        }
    }

    // True if waiting is in vain: a rank that is waited for is gone.
    virtual bool hopeless() { return false; }
    // True if it is known that a rank is gone, whether it is waited for or not. A rank that comes
    // late ends a call well, of which the others have shown their part before they gave up.
    virtual bool abandoned() { return false; }
    // A rank can't make a communicator of this one. It tells the others, which may wait for it
    // outside of calls. The context is a number of this communicator's, from 1.
    virtual void tell_unmade(std::uint64_t) noexcept {}
    virtual bool is_unmade(std::uint64_t) { return false; }
    // A wait is over in which it was asked for hopelessness: it closes what it opened for that.
    virtual void forget_processes() noexcept {}
    // Sleeps until a peer that is waited for has arrived, or some time has passed.
    virtual sleep_end sleep([[maybe_unused]] std::int64_t nanoseconds) {
        return sleep_end::not_begun;
    }
    // The ranks that are waited for. They may come while this looks.
    virtual std::vector<int> missing() = 0;
    // Gives up: throws an error that names the ranks that are waited for. The transport is not used
    // afterwards. Returns if these ranks have come meanwhile.
    virtual void fail(verdict reason) = 0;
    // How the data of the call moved that has just ended well. Only observers ask for it.
    virtual data_path path() const { return carries ? data_path::carried : data_path::messages; }
    // Called in a handler: a call has failed on this rank. Ranks that had left it are told later.
    virtual void note_failure() noexcept {}
    // Returns the failure that the next call would tell. @throws std::bad_alloc
    virtual message untold() { return {}; }
    // Tells the peers that this rank leaves, and why.
    virtual void leave(std::string_view) noexcept {}

    std::exception_ptr take_failure() { return std::exchange(failure, nullptr); }

    // Runs f, which belongs to a step. After an exception the ranks are no longer in step.
    template <class F>
    auto guarded(F f) {
        try {
            return f();
        } catch (...) {
            give_up();
            throw;
        }
    }

    // Runs f, a wait. fail() may end it, or a lack of memory. The ranks are not in step then.
    template <class F>
    void while_waiting(F f) {
        try {
            f();
        } catch (...) {
            if (!lost) give_up();
            throw;
        }
    }

    // Gives up what is under way: the ranks are no longer in step.
    void give_up() noexcept {
        lost = true;
        cancel();
    }

    const call_header** const headers;  // of all ranks, by rank, after an exchange of headers
    bool agreed = false;         // the exchange has shown that all are alike and refuse nothing
    int processors_each = 0;     // that each rank has for itself: a thread may spin on each
    bool lost = false;           // a peer or the endpoint is: nothing more can be agreed on
    bool found_death = false;    // the reason is that the process of a rank has ended
    bool carries = false;        // the data of the chosen call goes with its header
    bool brought = false;        // it has come so from all ranks that give any
    bool all_have_room = false;  // and all ranks have memory for it
    // A rank of this call may have left it, since it needed nothing from others any more: there are
    // no further steps of all ranks.
    bool apart = false;
    bool reached = false;  // ranks have read each other's tensors, since an observer cleared it
    // The failure of an earlier call, which this rank is told in this one: then not all are alike.
    std::exception_ptr late;
    // The exception of a reduction. It is kept until the protocol has run to its end, since the
    // other ranks go on meanwhile.
    std::exception_ptr failure;

protected:
    // Takes what has come in this round, and begins the next one: false if there is none.
    virtual bool advance() = 0;
    // Begins the allreduce of one group in one step, if the transport can do so.
    virtual bool allreduce_at_once(const operation&, const reduction_group&) { return false; }
    // Gives up what is under way.
    virtual void cancel() noexcept {}

    // The blocks of a broadcast, in sends_ and receives_.
    void lay_out_broadcast(const block& whole, int root) {
        for (block& b : sends_) b = rank_ == root ? whole : block{};
        for (block& b : receives_) b = {};
        if (rank_ == root) sends_[std::size_t(root)] = {};
        else receives_[std::size_t(root)] = whole;
    }

    template <class F>
    void guard(F reduce) {
        keep_failure(failure, reduce);
    }

    // Reduces elements of a group, which lie in inputs_, to `out`.
    void reduce_inputs(const operation& op, const reduction_group& g, std::size_t count,
                       std::byte* out) {
        if (count == 0 || failure) return;
        const bool scales = !g.is_scaled;
        try {
            g.function({g.op, inputs_, size_, size_, out, count, scales ? op.entry.prescale : 1,
                        scales ? op.entry.postscale : 1, tuned_.unstable.fetched_ahead});
        } catch (...) {
            failure = std::current_exception();
        }
    }

    // Reduces n elements of inputs_, from number `first` of the result on.
    void reduce_range(const reduction& job, std::size_t first, std::size_t n) {
        if (n == 0 || failure) return;
        try {
            job.function({job.op, inputs_, size_, size_, job.out + first * job.element_bytes, n,
                          job.prescale, job.postscale, tuned_.unstable.fetched_ahead});
        } catch (...) {
            failure = std::current_exception();
        }
    }

    int rank_, size_;
    tuning_options tuned_;
    table<block> sends_, receives_;   // of a primitive that is made of another one, by rank
    const std::byte** const inputs_;  // of a reduction, by rank

private:
    // Each rank reduces its slice of the group; then all gather the slices.
    void begin_group() {
        const operation& op = *by_groups_;
        const reduction_group& g = op.groups[group_];
        if (allreduce_at_once(op, g)) return;
        for (int p = 0; p < size_; ++p) {
            sends_[std::size_t(p)] = g.slice_of(op.in, p, size_);
            receives_[std::size_t(p)] = g.slice_of(op.out, p, size_);
        }
        reduce_scatter(sends_.data(), op.reduction_of(g, g.count_of(rank_, size_),
                                                      receives_[std::size_t(rank_)].data));
        gathers_next_ = true;
    }

    // The rest of an allreduce by groups.
    bool next_of_groups() {
        if (std::exchange(gathers_next_, false)) {
            allgather(receives_[std::size_t(rank_)], receives_.data());
        } else if (++group_ < by_groups_->group_count) {
            begin_group();
        } else {
            by_groups_ = nullptr;
            return false;
        }
        return true;
    }

    const operation* by_groups_ = nullptr;  // whose groups are reduced one after another
    std::size_t group_ = 0;
    bool gathers_next_ = false;
};

}  // namespace hvd::inline v0::detail
