// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../kernel/copy.hpp"
#include "shm_barrier.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The primitives that move blocks between ranks of one node: straight from the tensors if every
// rank can reach them, otherwise through the windows, in chunks that stay in the caches.
class shm_exchange : public shm_barrier {
public:
    using shm_barrier::shm_barrier;

    void alltoallv(const block* send, const block* receive) override {
        int receivers = 0;
        for (int p = 0; p < size_; ++p) receivers += p != rank_ && send[p].bytes > 0;
        move(send, receive, receivers <= 1);
    }

    void allgather(const block& mine, const block* receive) override {
        for (block& b : sends_) b = mine;
        move(sends_.data(), receive, true);
    }

    void broadcast(const block& whole, int root) override {
        lay_out_broadcast(whole, root);
        move(sends_.data(), receives_.data(), true);
    }

    void reduce_scatter(const block* send, const reduction& job) override {
        reduces_ = true;
        job_ = job;
        whole_elements_ = job.element_bytes > share_for_peers();
        guarded([&] {
            if (!whole_elements_) return begin_move(send, job.element_bytes, false);
            // An element is larger than a round: everything is brought here first, in bytes.
            const std::size_t bytes = job.count * job.element_bytes;
            brought_.resize(bytes * std::size_t(size_));
            if (blocks_.empty()) blocks_ = table<block>(std::size_t(size_));
            for (int p = 0; p < size_; ++p)
                if (p != rank_)
                    blocks_[std::size_t(p)] = {brought_.data() + std::size_t(p) * bytes, bytes};
            receive_ = blocks_.data();
            begin_move(send, 1, false);
        });
    }

private:
    void move(const block* send, const block* receive, bool same_for_all) {
        reduces_ = false;
        receive_ = receive;
        begin_move(send, 1, same_for_all);
    }

    // Every block in `send` is a multiple of `unit` bytes, and is cut between units.
    void begin_move(const block* send, std::size_t unit, bool same_for_all) {
        send_ = send;
        unit_ = unit;
        same_for_all_ = same_for_all;
        next_ = static_cast<round>(&shm_exchange::first_round);
        take_window();
        if (!show_places()) begin_windows();
        arrive();
    }

    void begin_windows() {
        round_ = 0;
        lay_out_window();
        fill_window();
    }

    bool first_round() {
        if (all_filled(content::places)) {
            next_ = &shm_exchange::finish;
            reach([&] { reduces_ ? reduce_in_place() : take_in_place(); });
            return true;
        }
        next_ = static_cast<round>(&shm_exchange::next_window);
        if (all_filled(content::data)) return next_window();
        take_window();
        begin_windows();
        arrive();
        return true;
    }

    bool show_places() {
        std::size_t longest = 0;
        for (int p = 0; p < size_; ++p) {
            const block& b = send_[p];
            if (b.bytes > longest) longest = b.bytes;
            if (!reduces_ && receive_[p].bytes > longest) longest = receive_[p].bytes;
            if (!show_place(std::size_t(p), b.data, b.bytes)) return false;
        }
        if (longest < tuning::least_in_place) return false;
        fill_of(rank_).what = content::places;
        return true;
    }

    void take_in_place() {
        for (int i = 1; i < size_; ++i) {
            const int peer = (rank_ + i) % size_;
            if (receive_[peer].bytes > 0)
                copy_bytes(receive_[peer].data, at_place(peer, std::size_t(rank_)),
                           receive_[peer].bytes);
        }
    }

    void reduce_in_place() {
        for (int p = 0; p < size_; ++p) inputs_[p] = at_place(p, std::size_t(rank_));
        reduce_range(job_, 0, job_.count);
    }

    // One synchronisation a round: the two windows of a rank take turns.
    bool next_window() {
        if (reduces_ && !whole_elements_) reduce_windows();
        else take_windows();
        if (++round_ >= rounds()) {
            if (reduces_ && whole_elements_) reduce_brought();
            return false;
        }
        const window_fill layout = fill_of(rank_);
        take_window();
        fill_of(rank_) = layout;
        fill_window();
        arrive();
        return true;
    }

    std::uint64_t rounds() const {
        std::uint64_t most = 1;
        for (int p = 0; p < size_; ++p) most = fill_of(p).rounds > most ? fill_of(p).rounds : most;
        return most;
    }

    // The window holds one chunk for all receivers where these get the same, otherwise a chunk for
    // each. In reductions a round has the same elements of every rank.
    void lay_out_window() {
        std::size_t longest = 0;
        for (int p = 0; p < size_; ++p)
            if (p != rank_ && send_[p].bytes > longest) longest = send_[p].bytes;
        const std::size_t share = same_for_all_ ? window_bytes_ : share_for_peers();
        const std::size_t chunk = share / unit_ * unit_;
        fill_of(rank_) = {content::data, (longest + chunk - 1) / chunk, chunk,
                          same_for_all_ ? 0 : share};
    }

    std::size_t share_for_peers() const { return share_of_window(size_ > 1 ? size_ - 1 : 1); }

    void fill_window() {
        const window_fill& layout = fill_of(rank_);
        for (int p = 0; p < size_; ++p) {
            const std::size_t begin = round_ * layout.chunk;
            if (p == rank_ || begin >= send_[p].bytes) continue;
            const std::size_t rest = send_[p].bytes - begin;
            copy_bytes(window(rank_) + position(p, rank_) * layout.stride, send_[p].data + begin,
                       rest < layout.chunk ? rest : layout.chunk);
            if (layout.stride == 0) return;
        }
    }

    // The number of the chunk for `receiver` in the window of a sender, which has none for itself.
    static std::size_t position(int receiver, int sender) {
        return std::size_t(receiver < sender ? receiver : receiver - 1);
    }

    const std::byte* chunk_from(int peer) const {
        return window(peer) + position(rank_, peer) * fill_of(peer).stride;
    }

    void take_windows() {
        for (int p = 0; p < size_; ++p) {
            const std::size_t chunk = fill_of(p).chunk, begin = round_ * chunk;
            if (p == rank_ || begin >= receive_[p].bytes) continue;
            const std::size_t rest = receive_[p].bytes - begin;
            copy_bytes(receive_[p].data + begin, chunk_from(p), rest < chunk ? rest : chunk);
        }
    }

    void reduce_windows() {
        const std::size_t chunk =
            size_ == 1 ? job_.count : fill_of(rank_).chunk / job_.element_bytes;
        const std::size_t first = round_ * chunk;
        if (first >= job_.count) return;
        for (int p = 0; p < size_; ++p)
            inputs_[p] = p == rank_ ? send_[p].data + first * job_.element_bytes : chunk_from(p);
        reduce_range(job_, first, job_.count - first < chunk ? job_.count - first : chunk);
    }

    void reduce_brought() {
        for (int p = 0; p < size_; ++p)
            inputs_[p] = p == rank_ ? send_[p].data : blocks_[std::size_t(p)].data;
        reduce_range(job_, 0, job_.count);
    }

    bool reduces_ = false, whole_elements_ = false, same_for_all_ = false;
    std::size_t unit_ = 1;
    std::uint64_t round_ = 0;
    const block* send_ = nullptr;
    const block* receive_ = nullptr;
    reduction job_{};
    table<block> blocks_;
    std::vector<std::byte> brought_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
