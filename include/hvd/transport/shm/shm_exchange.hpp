// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../kernel/copy.hpp"
#include "shm_barrier.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What ranks of one node have for each other: straight from where it lies if every rank can reach
// it, otherwise through the windows, in chunks that stay in the cache.
class shm_exchange : public shm_barrier {
public:
    using shm_barrier::shm_barrier;

    void exchange(const block* send, const block* receive) override {
        combines_ = false;
        receive_ = receive;
        begin(send, 1, true);
    }

    void combine(const block* send, const reduction& job) override {
        combines_ = true;
        job_ = job;
        whole_ = job.element_bytes > share_of_window();
        if (!whole_) return begin(send, job.element_bytes, false);
        // Elements larger than a round: everything is brought here first, in bytes.
        const std::size_t bytes = job.count * job.element_bytes;
        brought_.resize(bytes * std::size_t(size_));
        if (blocks_.empty()) blocks_ = table<block>(std::size_t(size_));
        for (int p = 0; p < size_; ++p)
            if (p != rank_)
                blocks_[std::size_t(p)] = {brought_.data() + std::size_t(p) * bytes, bytes};
        receive_ = blocks_.data();
        begin(send, 1, false);
    }

protected:
    bool next_exchange() {
        switch (stage_) {
            case stage::first: return next_first();
            case stage::windows: return next_window();
            case stage::last: break;  // the peers are done with this rank's tensor
        }
        return false;
    }

private:
    enum class stage { first, windows, last };

    void begin(const block* send, std::size_t unit, bool may_be_whole) {
        send_ = send;
        unit_ = unit;
        may_be_whole_ = may_be_whole;
        stage_ = stage::first;
        take_window();
        if (!show_places()) begin_windows();
        arrive();
    }

    void begin_windows() {
        round_ = 0;
        lay_out_window();
        fill_window();
    }

    bool next_first() {
        if (all_filled(content::places)) {
            reach([&] { combines_ ? combine_in_place() : take_in_place(); });
            stage_ = stage::last;
            arrive();
            return true;
        }
        stage_ = stage::windows;
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
            if (!combines_ && receive_[p].bytes > longest) longest = receive_[p].bytes;
            const place where = place_of(b.data, b.bytes);
            if (b.bytes > 0 && !where) return false;
            put_place(std::size_t(p), where);
        }
        if (longest < tuning::least_in_place) return false;
        my_fill().what = content::places;
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

    void combine_in_place() {
        for (int p = 0; p < size_; ++p) inputs_[std::size_t(p)] = at_place(p, std::size_t(rank_));
        reduce_range(job_, 0, job_.count);
    }

    // One synchronisation a round: the two halves of the windows take turns.
    bool next_window() {
        if (combines_ && !whole_) reduce_windows();
        else take_windows();
        if (++round_ >= rounds()) {
            if (combines_ && whole_) reduce_brought();
            return false;
        }
        const window_fill plan = my_fill();
        take_window();
        my_fill() = plan;
        fill_window();
        arrive();
        return true;
    }

    std::uint64_t rounds() const {
        std::uint64_t most = 1;
        for (int p = 0; p < size_; ++p) most = fill_of(p).rounds > most ? fill_of(p).rounds : most;
        return most;
    }

    // Whole for one receiver or where all get the same; shared otherwise, and in reductions, whose
    // rounds hold the same elements of every rank.
    void lay_out_window() {
        const block* first = nullptr;
        bool alike = may_be_whole_;
        std::size_t longest = 0;
        for (int p = 0; p < size_; ++p) {
            if (p == rank_ || send_[p].bytes == 0) continue;
            if (first == nullptr) first = &send_[p];
            alike = alike && send_[p].data == first->data && send_[p].bytes == first->bytes;
            if (send_[p].bytes > longest) longest = send_[p].bytes;
        }
        const std::size_t share = alike ? region_.window_bytes() : share_of_window();
        const std::size_t chunk = share / unit_ * unit_;
        my_fill() = {content::data, (longest + chunk - 1) / chunk, chunk, alike ? 0 : share};
    }

    std::size_t share_of_window() const {
        const std::size_t peers = size_ > 1 ? std::size_t(size_ - 1) : 1;
        return region_.window_bytes() / peers / tuning::cache_line * tuning::cache_line;
    }

    void fill_window() {
        const window_fill& plan = my_fill();
        for (int p = 0; p < size_; ++p) {
            const std::size_t begin = round_ * plan.chunk;
            if (p == rank_ || begin >= send_[p].bytes) continue;
            const std::size_t rest = send_[p].bytes - begin;
            copy_bytes(window(rank_) + position(p, rank_) * plan.stride, send_[p].data + begin,
                       rest < plan.chunk ? rest : plan.chunk);
            if (plan.stride == 0) return;
        }
    }

    // Where in its window a sender keeps what is for `receiver`: it has no place for itself.
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
        const std::size_t chunk = size_ == 1 ? job_.count : my_fill().chunk / job_.element_bytes;
        const std::size_t first = round_ * chunk;
        if (first >= job_.count) return;
        for (int p = 0; p < size_; ++p)
            inputs_[std::size_t(p)] =
                p == rank_ ? send_[p].data + first * job_.element_bytes : chunk_from(p);
        reduce_range(job_, first, job_.count - first < chunk ? job_.count - first : chunk);
    }

    void reduce_brought() {
        for (int p = 0; p < size_; ++p)
            inputs_[std::size_t(p)] = p == rank_ ? send_[p].data : blocks_[std::size_t(p)].data;
        reduce_range(job_, 0, job_.count);
    }

    stage stage_ = stage::first;
    bool combines_ = false, whole_ = false, may_be_whole_ = false;
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
