// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../kernel/copy.hpp"
#include "shm_ring.hpp"

namespace hvd::inline v0::detail {

// The primitives that move blocks between ranks of one node: straight from the tensors if every
// rank can reach them, otherwise through the windows, in chunks that stay in the caches.
class shm_exchange : public shm_ring {
public:
    using shm_ring::shm_ring;

    void alltoallv(const block* send, const block* receive) override {
        int receivers = 0;
        for (int p = 0; p < size_; ++p) receivers += p != rank_ && send[p].bytes > 0;
        move(send, receive, receivers <= 1);
    }

    void allgather(const block& mine, const block* receive) override {
        for (block& b : sends_) b = mine;
        move(sends_.data(), receive, true, !crowded_);
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
    // `reads_private`: each tensor may be read where it lies, also in private memory.
    void move(const block* send, const block* receive, bool same_for_all,
              bool reads_private = true) {
        reduces_ = false;
        reads_private_ = reads_private && region_.reads_private();
        receive_ = receive;
        begin_move(send, 1, same_for_all);
    }

    // Every block in `send` is a multiple of `unit` bytes, and is cut between units.
    void begin_move(const block* send, std::size_t unit, bool same_for_all) {
        send_ = send;
        unit_ = unit;
        same_for_all_ = same_for_all;
        next_ = static_cast<round>(&shm_exchange::first_round);
        show_nothing();
        if (!show_places()) show_windows();
        arrive();
    }

    bool first_round() {
        if (all_show(content::places)) {
            next_ = &shm_exchange::finish;
            reach([&] { return reduces_ ? reduce_in_place() : take_in_place(); });
            return true;
        }
        if (!all_show(content::data)) {  // some could not show theirs, or not in the same way
            show_nothing();
            show_windows();
            arrive();
            return true;
        }
        return begin_chunks(rounds(), static_cast<work>(&shm_exchange::fill_window), nullptr,
                            static_cast<work>(&shm_exchange::take_window));
    }

    bool show_places() {
        std::byte* const piece = room_for(std::size_t(size_) * sizeof(place));
        if (piece == nullptr) return false;
        std::size_t longest = 0;
        bool is_private = false;
        for (int p = 0; p < size_; ++p) {
            const block& b = send_[p];
            if (b.bytes > longest) longest = b.bytes;
            if (!reduces_ && receive_[p].bytes > longest) longest = receive_[p].bytes;
            if (show_place(piece, std::size_t(p), b.data, b.bytes)) continue;
            if (reduces_ || !reads_private_) return false;
            const place address{0, std::uint64_t(reinterpret_cast<std::uintptr_t>(b.data))};
            std::memcpy(piece + std::size_t(p) * sizeof address, &address, sizeof address);
            is_private = true;
        }
        if (longest < (is_private ? tuned_.unstable.least_private : tuned_.unstable.least_in_place))
            return false;
        show_piece(content::places, std::size_t(size_) * sizeof(place));
        return true;
    }

    const std::byte* sent_by(int peer, std::size_t bytes) const {
        return at_place(peer, std::size_t(rank_), std::size_t(size_), bytes);
    }

    // False if a rank has ended, whose tensor is gone.
    bool take_in_place() {
        for (int i = 1; i < size_; ++i) {
            const int peer = (rank_ + i) % size_;
            const block& to = receive_[peer];
            if (to.bytes == 0) continue;
            const place from = place_shown(peer, std::size_t(rank_), std::size_t(size_));
            if (from) copy_bytes(to.data, sent_by(peer, to.bytes), to.bytes);
            else if (!take_private(peer, from.offset, to)) return false;
        }
        return true;
    }

    // A rank that leaves may write there again, as soon as it has said so.
    bool take_private(int peer, std::uint64_t address, const block& to) {
        const int refusal = region_.read_private(peer, address, to.data, to.bytes);
        if (refusal != 0 && refusal != ESRCH) [[unlikely]]
            refuse_unread(peer, refusal);
        return refusal == 0 && !has_left_in_order(peer);
    }
    bool reduce_in_place() {
        for (int p = 0; p < size_; ++p) inputs_[p] = sent_by(p, job_.count * job_.element_bytes);
        reduce_range(job_, 0, job_.count);
        return true;
    }

    // The layouts of all ranks are shown with their first windows.
    std::uint64_t rounds() const {
        std::uint64_t most = 1;
        for (int p = 0; p < size_; ++p) {
            if (!is_possible(p)) refuse_shown_by(p);
            if (layout_of(p).rounds > most) most = layout_of(p).rounds;
        }
        return most;
    }
    // False for a layout that no rank shows: the chunks of all peers lie in a window, and those of
    // this rank have its block.
    bool is_possible(int peer) const {
        const window_layout& l = layout_of(peer);
        if (l.chunk > window_bytes_ || l.stride > window_bytes_) return false;
        const std::size_t first = l.stride * std::size_t(size_ > 1 ? size_ - 2 : 0);
        if (first > window_bytes_ - l.chunk) return false;
        if (peer == rank_) return true;
        if (reduces_ && !whole_elements_) return l.chunk == layout_of(rank_).chunk;
        const std::size_t bytes = reduces_ ? job_.count * job_.element_bytes : receive_[peer].bytes;
        return bytes == 0 || (l.chunk > 0 && (bytes - 1) / l.chunk < l.rounds);
    }
    const window_layout& layout_of(int peer) const { return line_of(peer).layout; }

    // A window holds one chunk for all receivers where these get the same, otherwise a chunk for
    // each. In reductions a round has the same elements of every rank.
    void show_windows() {
        std::byte* const first = first_window();
        if (first == nullptr) return;
        std::size_t longest = 0;
        for (int p = 0; p < size_; ++p)
            if (p != rank_ && send_[p].bytes > longest) longest = send_[p].bytes;
        const std::size_t share = same_for_all_ ? window_bytes_ : share_for_peers();
        const std::size_t chunk = share / unit_ * unit_;
        window_layout& layout = next_line().layout;
        layout.rounds = (longest + chunk - 1) / chunk;
        layout.chunk = chunk;
        layout.stride = same_for_all_ ? 0 : share;
        fill_window(layout, 0, first);
        show_first_chunk();
    }

    std::size_t share_for_peers() const { return share_of_window(size_ > 1 ? size_ - 1 : 1); }

    void fill_window(std::uint64_t i) { fill_window(layout_of(rank_), i, chunk_of(rank_, i)); }

    void fill_window(const window_layout& layout, std::uint64_t i, std::byte* window) {
        for (int p = 0; p < size_; ++p) {
            const std::size_t begin = i * layout.chunk;
            if (p == rank_ || begin >= send_[p].bytes) continue;
            const std::size_t rest = send_[p].bytes - begin,
                              bytes = rest < layout.chunk ? rest : layout.chunk;
            stores_.fill(bytes, [&](store_kind kind) {
                store_bytes(kind, window + position(p, rank_) * layout.stride,
                            send_[p].data + begin, bytes);
            });
            if (layout.stride == 0) return;
        }
    }

    void take_window(std::uint64_t i) {
        if (reduces_ && !whole_elements_) reduce_windows(i);
        else take_windows(i);
        if (reduces_ && whole_elements_ && i + 1 == rounds()) reduce_brought();
    }

    // The number of the chunk for `receiver` in the window of a sender, which has none for itself.
    static std::size_t position(int receiver, int sender) {
        return std::size_t(receiver < sender ? receiver : receiver - 1);
    }

    const std::byte* chunk_from(int peer, std::uint64_t i) const {
        return chunk_of(peer, i) + position(rank_, peer) * layout_of(peer).stride;
    }

    void take_windows(std::uint64_t i) {
        for (int p = 0; p < size_; ++p) {
            const std::size_t chunk = layout_of(p).chunk, begin = i * chunk;
            if (p == rank_ || begin >= receive_[p].bytes) continue;
            const std::size_t rest = receive_[p].bytes - begin, bytes = rest < chunk ? rest : chunk;
            stores_.read(bytes,
                         [&] { copy_bytes(receive_[p].data + begin, chunk_from(p, i), bytes); });
        }
    }

    void reduce_windows(std::uint64_t i) {
        const std::size_t chunk =
            size_ == 1 ? job_.count : layout_of(rank_).chunk / job_.element_bytes;
        const std::size_t first = i * chunk;
        if (first >= job_.count) return;
        for (int p = 0; p < size_; ++p)
            inputs_[p] = p == rank_ ? send_[p].data + first * job_.element_bytes : chunk_from(p, i);
        reduce_range(job_, first, job_.count - first < chunk ? job_.count - first : chunk);
    }

    void reduce_brought() {
        for (int p = 0; p < size_; ++p)
            inputs_[p] = p == rank_ ? send_[p].data : blocks_[std::size_t(p)].data;
        reduce_range(job_, 0, job_.count);
    }

    bool reduces_ = false, whole_elements_ = false, same_for_all_ = false, reads_private_ = false;
    std::size_t unit_ = 1;
    const block* send_ = nullptr;
    const block* receive_ = nullptr;
    reduction job_{};
    table<block> blocks_;
    std::vector<std::byte> brought_;
};

}  // namespace hvd::inline v0::detail
