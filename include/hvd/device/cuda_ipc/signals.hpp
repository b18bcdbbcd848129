// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/process.hpp"
#include "../../platform/thread.hpp"
#include "../../protocol/host_ranks.hpp"
#include "calls.hpp"
#include "home.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The words by which streams of all ranks meet without the host. In each turn a stream writes the
// number of the turn into its rank's word, and waits until the others' words have it. The host only
// enqueues that. The calls are on a board, which each rank reads when it comes by.
//
// It is used if every rank can do it, and if no two ranks of a process share a GPU: CUDA may run
// two streams of a process one after another, and the first would wait for the second.
class ipc_signals {
public:
    ipc_signals() = default;
    ipc_signals(const ipc_signals&) = delete;
    ipc_signals& operator=(const ipc_signals&) = delete;
    ~ipc_signals() { stop_releasing(); }

    // Decides if signals are used, with a trial on the stream. **Collective**.
    void connect(host_ranks& ranks, const std::vector<ipc_home>& homes, cudaStream_t stream,
                 time_point limit) {
        rank_ = ranks.rank();
        size_ = ranks.size();
        homes_ = &homes;
        if (!all_do(ranks, each_has_a_gpu() && values_.find(), limit)) return;
        if (!all_do(ranks, share_board(ranks, limit), limit)) return forget();
        if (rank_ == 0) board_->all_have_it();
        if (!all_do(ranks, passes_trial(stream, limit), limit)) return give_up_trial(stream);
        calls_ = {board_, rank_, size_};
        watches_ = table<process_watch>(std::size_t(size_));
        used_ = true;
    }

    bool are_used() const { return used_; }
    ipc_calls& calls() { return calls_; }

    // The turns that this rank has taken.
    std::uint64_t turns() const { return turns_; }

    // Called before a stream is given work for the next turn.
    void announce() { board_->of(rank_).announced.store(turns_ + 1); }

    // Takes the next turn: the stream's later work comes after the earlier work of all ranks.
    void meet(cudaStream_t stream) {
        announce();
        const std::uint32_t turn = word_of(++turns_);
        values_.write(stream, words_[std::size_t(rank_)], turn, rank_);
        for (int k = 1; k < size_; ++k)
            values_.wait(stream, words_[std::size_t((rank_ + k) % size_)], turn, rank_);
    }

    // Returns the rank that gave the communicator up, or -1.
    int given_up_by() const { return int(board_->given_up().load() >> 32) - 1; }

    // Returns a rank that does not come to this rank's next call, or -1.
    int not_coming() const {
        const int by = given_up_by();
        for (int r = 0; by < 0 && r < size_; ++r)
            if (has_left(r, calls_.posted() + 1)) return r;
        return by;
    }

    // Returns a rank for which this rank's streams would wait in vain, or -1.
    int missing() {
        if (given_up_by() >= 0) return released_by(turns_);
        for (int r = 0; r < size_; ++r)
            if (r != rank_ && (has_left(r, calls_.posted()) || has_ended(r))) return r;
        return -1;
    }

    // Returns the rank that may have let streams go on from a turn too early, or -1: all had
    // reached the turn, and none had work for the next but one, which fills this turn's half of a
    // window again.
    int released_by(std::uint64_t turn) const {
        const std::uint64_t how = board_->given_up().load();
        if (how == 0 || comes_after(std::uint32_t(how), word_of(turn + 1))) return -1;
        bool is_whole = comes_after(std::uint32_t(how), word_of(turn));
        for (int r = 0; r < size_; ++r)
            is_whole = is_whole && board_->of(r).announced.load() <= turn + 1;
        return is_whole ? -1 : int(how >> 32) - 1;
    }

    // Lets all streams go on that wait for a turn, on all ranks, once each rank has learned of it
    // or the limit is over. They are told the last turn that all had reached, so that none takes a
    // later one for complete. A stream that comes to its own turn afterwards overwrites the word,
    // so a thread repeats it. It returns false if there are no signals.
    bool release(time_point limit) noexcept {
        if (!used_) return false;
        std::uint32_t reached = word_of(turns_);
        for (int r = 0; r < size_; ++r)
            if (const std::uint32_t turn = board_->of(r).turn.load(); comes_after(reached, turn))
                reached = turn;
        board_->given_up().compare_exchange(0, std::uint64_t(rank_ + 1) << 32 | reached);
        board_->of(rank_).gave_up.store(true);
        release_at_.store(limit);
        if (!releasing_) releasing_ = thread([this] { keep_releasing(); });
        if (!releasing_) fill_words();
        return true;
    }

    // Tells the others that no further calls come.
    void leave() noexcept {
        if (used_) board_->of(rank_).left.store(true);
    }

    // `finished`: no stream of this rank uses the board any more.
    void end(bool finished) noexcept {
        stop_releasing();
        if (used_ && given_up_by() >= 0) fill_words();
        if (!finished && board_ != nullptr) board_->keep();
        used_ = false;
    }

private:
    static constexpr std::int64_t longest_trial = 10 * tuning::second;

    struct offer {
        shared_memory::ticket ticket;
        const std::shared_ptr<ipc_board>* board;
    };

    // The number of a turn in a word. Numbers begin again after 2^32, which all programs see soon.
    static std::uint32_t word_of(std::uint64_t turn) { return std::uint32_t(turn - 256); }
    static bool comes_after(std::uint32_t turn, std::uint32_t other) {  // or is the same
        return std::int32_t(turn - other) >= 0;
    }

    static bool all_do(host_ranks& ranks, bool mine, time_point limit) {
        for (const char does : ranks.all(char(mine), limit))
            if (does == 0) return false;
        return true;
    }

    bool each_has_a_gpu() const {
        for (std::size_t a = 0; a < homes_->size(); ++a)
            for (std::size_t b = 0; b < a; ++b)
                if ((*homes_)[a].gpu == (*homes_)[b].gpu &&
                    (*homes_)[a].shares_process_with((*homes_)[b]))
                    return false;
        return true;
    }

    int first_of_this_process() const {
        int r = 0;
        while (!(*homes_)[std::size_t(r)].shares_process_with((*homes_)[std::size_t(rank_)])) ++r;
        return r;
    }

    // Rank 0 makes the board. The first rank of each process maps it for the others.
    bool share_board(host_ranks& ranks, time_point limit) {
        const std::size_t bytes = ipc_board::bytes_for(size_);
        const int first = first_of_this_process();
        shared_memory memory;
        if (rank_ == 0) {
            memory = shared_memory::create(bytes, false);
            if (memory && !memory.reserve(0, bytes)) memory = {};
        }
        offer mine{memory ? memory.how_to_open() : shared_memory::ticket(), &board_};
        const shared_memory::ticket ticket = ranks.all(mine, limit)[0].ticket;
        if (rank_ == first && rank_ != 0) memory = shared_memory::open(ticket, bytes);
        if (rank_ == first && memory)
            board_ = std::make_shared<ipc_board>(std::move(memory), bytes);
        if (rank_ == first && board_ != nullptr)
            for (int r = 0; rank_ == 0 && r < size_; ++r) board_->of(r).turn.store(word_of(0));
        const auto boards = ranks.all(mine, limit);
        if (rank_ != first) board_ = *boards[std::size_t(first)].board;
        for (int r = 0; board_ != nullptr && r < size_; ++r)
            words_.push_back(board_->turn_on_device(r));
        return board_ != nullptr && words_[0] != nullptr;
    }

    // A driver that has the calls may still not carry them out on this memory.
    bool passes_trial(cudaStream_t stream, time_point limit) noexcept {
        try {
            meet(stream);
            const cuda_event done(stream, rank_);
            const time_point end = now() + longest_trial;
            backoff pauses(false);
            while (!done.reached(rank_))
                if (pauses.pause() && now() > (limit < end ? limit : end)) break;
            if (done.reached(rank_)) return true;
        } catch (const cuda_error&) {
        }
        fill_words();  // the others need not wait for this one
        return false;
    }

    void give_up_trial(cudaStream_t stream) noexcept {
        fill_words();
        const capture_relaxed relaxed;
        cudaStreamSynchronize(stream);
        forget();
    }

    void forget() noexcept {
        words_.clear();
        board_ = {};
    }

    bool has_left(int r, std::uint64_t call) const {
        return board_->of(r).left.load() && board_->of(r).posted.load() < call;
    }

    bool has_ended(int r) {
        if (board_->of(r).left.load()) return false;
        const ipc_home &own = (*homes_)[std::size_t(rank_)], &peer = (*homes_)[std::size_t(r)];
        return own.numbering == peer.numbering && own.process != peer.process &&
               watches_[std::size_t(r)].has_ended(std::int64_t(peer.process), peer.started);
    }

    // No rank is half of all numbers ahead of another.
    void fill_words() noexcept {
        const std::uint32_t later = word_of(turns_ + (1u << 30));
        for (int r = 0; r < size_; ++r) board_->of(r).turn.store(later);
    }

    void keep_releasing() noexcept {
        while (!stop_.load() && !all_know() && now() <= release_at_.load())
            sleep_for(tuning::check_interval);
        for (std::int64_t pause = tuning::check_interval; !stop_.load();
             pause = pause < 16 * tuning::check_interval ? 2 * pause : pause) {
            fill_words();
            sleep_for(pause);
        }
    }

    bool all_know() {
        for (int r = 0; r < size_; ++r) {
            ipc_board_place& peer = board_->of(r);
            if (!peer.gave_up.load() && !peer.left.load()) return false;
        }
        return true;
    }

    void stop_releasing() noexcept {
        stop_.store(true);
        releasing_.join();
    }

    int rank_ = 0, size_ = 0;
    bool used_ = false;
    const std::vector<ipc_home>* homes_ = nullptr;
    stream_values values_;
    std::shared_ptr<ipc_board> board_;
    std::vector<std::uint32_t*> words_;  // the ranks' turns, as the device sees them
    std::uint64_t turns_ = 0;
    ipc_calls calls_;
    table<process_watch> watches_;
    atomic<std::int64_t> release_at_ = 0;
    atomic<bool> stop_ = false;
    thread releasing_;  // last: it uses the others
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
