// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>

#include <signal.h>

#include "node_area.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Moves data between the ranks of one node through memory that all of them have mapped. Where the
// area has no windows (threads), ranks read each other's tensors where they lie; otherwise tensors
// pass through the windows in portions that stay in the cache.
class node_transport final : public transport {
public:
    node_transport(const node_area& area, int rank) : transport(rank, area.ranks()), area_(area) {}

    void enter(const record& mine) override {
        step_ = step::enter;
        ++entries_;
        area_.slot(rank_).entry[entries_ & 1] = mine;
        arrive();
    }

    void exchange(const block* send, const block* receive) override {
        step_ = step::exchange;
        receive_ = receive;
        begin(send, 1, true);
    }

    void combine(const block* send, const reduction& job) override {
        step_ = step::combine;
        job_ = job;
        whole_ = !direct() && job.element_bytes > share_of_window();
        if (!whole_) return begin(send, job.element_bytes, false);
        // Elements larger than a round: everything is brought here first, in bytes.
        const std::size_t bytes = job.count * job.element_bytes;
        brought_.resize(bytes * std::size_t(size_));
        blocks_.assign(std::size_t(size_), {});
        for (int p = 0; p < size_; ++p)
            if (p != rank_) blocks_[std::size_t(p)] = {brought_.data() + std::size_t(p) * bytes, bytes};
        receive_ = blocks_.data();
        begin(send, 1, false);
    }

    bool ready() override {
        for (int p = 0; p < size_; ++p)
            if (!arrived(p)) return false;
        return true;
    }

    bool next() override {
        if (step_ == step::enter) {
            for (int p = 0; p < size_; ++p) records[std::size_t(p)] = &area_.slot(p).entry[entries_ & 1];
            return false;
        }
        return direct() ? next_direct() : next_window();
    }

    bool hopeless() override {
        for (int p = 0; p < size_; ++p)
            if (!arrived(p) && gone(p)) return true;
        return false;
    }

    [[gnu::cold]] void fail(verdict reason) override {
        lost = true;
        std::vector<int> missing;
        message who;
        for (int p = 0; p < size_; ++p) {
            if (arrived(p) || (reason == verdict::hopeless && !gone(p))) continue;
            const node_slot& slot = area_.slot(p);
            who += text(missing.empty() ? "rank " : ", rank ", p);
            if (!gone(p)) who += " did not come in time";
            else if (slot.left.load() != 0) who += text(" left (", std::string_view(slot.farewell), ")");
            else who += text(" died (process ", slot.process.load_relaxed(), ")");
            missing.push_back(p);
        }
        const record& mine = area_.slot(rank_).entry[entries_ & 1];
        throw peer_error(rank_, text("hvd: ", mine.label(), " on rank ", rank_, ": ", who), std::move(missing));
    }

    void leave(std::string_view reason) noexcept override { area_.leave(rank_, reason); }

private:
    enum class step { enter, exchange, combine };

    bool direct() const { return area_.window_bytes() == 0; }

    void arrive() {
        ++steps_;
        area_.slot(rank_).step.store(steps_);
    }

    bool arrived(int peer) const { return area_.slot(peer).step.load() >= steps_; }

    bool gone(int peer) const {
        const node_slot& slot = area_.slot(peer);
        if (slot.left.load() != 0) return !arrived(peer);
        const auto process = pid_t(slot.process.load_relaxed());
        return process != 0 && kill(process, 0) != 0 && errno == ESRCH;
    }

    void begin(const block* send, std::size_t unit, bool may_be_whole) {
        send_ = send;
        round_ = 0;
        if (direct()) {
            area_.slot(rank_).blocks.store_relaxed(send);
        } else {
            lay_out_window(unit, may_be_whole);
            fill_window();
        }
        arrive();
    }

    // First round: all blocks are known. Second: peers are done with this rank's tensor.
    bool next_direct() {
        if (round_++ == 1) return false;
        if (step_ == step::combine) {
            for (int p = 0; p < size_; ++p) inputs_[std::size_t(p)] = from(p).data;
            reduce_portion(job_, 0, job_.count);
        } else {
            for (int i = 1; i < size_; ++i) {
                const int peer = (rank_ + i) % size_;
                if (receive_[peer].bytes > 0) std::memcpy(receive_[peer].data, from(peer).data, receive_[peer].bytes);
            }
        }
        arrive();
        return true;
    }

    const block& from(int peer) const { return area_.slot(peer).blocks.load_relaxed()[rank_]; }

    // One synchronisation a round: the two halves of the windows take turns.
    bool next_window() {
        if (step_ == step::combine && !whole_) reduce_windows();
        else take_windows();
        ++half_;
        if (++round_ >= rounds()) {
            if (step_ == step::combine && whole_) reduce_brought();
            return false;
        }
        fill_window();
        arrive();
        return true;
    }

    const window_plan& plan_of(int peer) const { return area_.slot(peer).plan[exchanges_ & 1]; }

    std::uint64_t rounds() const {
        std::uint64_t most = 1;
        for (int p = 0; p < size_; ++p) most = plan_of(p).rounds > most ? plan_of(p).rounds : most;
        return most;
    }

    // Whole for one receiver or where all get the same; shared otherwise, and in reductions, whose
    // rounds hold the same elements of every rank.
    void lay_out_window(std::size_t unit, bool may_be_whole) {
        ++exchanges_;
        const block* first = nullptr;
        bool alike = may_be_whole;
        std::size_t longest = 0;
        for (int p = 0; p < size_; ++p) {
            if (p == rank_ || send_[p].bytes == 0) continue;
            if (first == nullptr) first = &send_[p];
            alike = alike && send_[p].data == first->data && send_[p].bytes == first->bytes;
            if (send_[p].bytes > longest) longest = send_[p].bytes;
        }
        const std::size_t share = alike ? area_.window_bytes() : share_of_window();
        const std::size_t portion = share / unit * unit;
        area_.slot(rank_).plan[exchanges_ & 1] = {(longest + portion - 1) / portion, portion, alike ? 0 : share};
    }

    std::size_t share_of_window() const {
        const std::size_t peers = size_ > 1 ? std::size_t(size_ - 1) : 1;
        return area_.window_bytes() / peers / 64 * 64;
    }

    void fill_window() {
        const window_plan& plan = plan_of(rank_);
        for (int p = 0; p < size_; ++p) {
            const std::size_t begin = round_ * plan.portion;
            if (p == rank_ || begin >= send_[p].bytes) continue;
            const std::size_t rest = send_[p].bytes - begin;
            std::memcpy(area_.window(rank_, half_) + place_of(p, rank_) * plan.stride, send_[p].data + begin,
                        rest < plan.portion ? rest : plan.portion);
            if (plan.stride == 0) return;
        }
    }

    // Where in its window a sender keeps what is for `receiver`: it has no place for itself.
    static std::size_t place_of(int receiver, int sender) { return std::size_t(receiver < sender ? receiver : receiver - 1); }

    const std::byte* portion_from(int peer) const {
        return area_.window(peer, half_) + place_of(rank_, peer) * plan_of(peer).stride;
    }

    void take_windows() {
        for (int p = 0; p < size_; ++p) {
            const std::size_t portion = plan_of(p).portion, begin = round_ * portion;
            if (p == rank_ || begin >= receive_[p].bytes) continue;
            const std::size_t rest = receive_[p].bytes - begin;
            std::memcpy(receive_[p].data + begin, portion_from(p), rest < portion ? rest : portion);
        }
    }

    void reduce_windows() {
        const std::size_t portion = size_ == 1 ? job_.count : plan_of(rank_).portion / job_.element_bytes;
        const std::size_t first = round_ * portion;
        if (first >= job_.count) return;
        for (int p = 0; p < size_; ++p)
            inputs_[std::size_t(p)] = p == rank_ ? send_[p].data + first * job_.element_bytes : portion_from(p);
        reduce_portion(job_, first, job_.count - first < portion ? job_.count - first : portion);
    }

    void reduce_brought() {
        for (int p = 0; p < size_; ++p)
            inputs_[std::size_t(p)] = p == rank_ ? send_[p].data : blocks_[std::size_t(p)].data;
        reduce_portion(job_, 0, job_.count);
    }

    node_area area_;
    step step_ = step::enter;
    std::uint64_t steps_ = 0, entries_ = 0, exchanges_ = 0, half_ = 0, round_ = 0;
    const block* send_ = nullptr;
    const block* receive_ = nullptr;
    reduction job_{};
    bool whole_ = false;
    std::vector<block> blocks_;
    std::vector<std::byte> brought_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
