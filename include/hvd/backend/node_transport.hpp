// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>
#include <vector>

#include <signal.h>

#include "../detail/task.hpp"
#include "../kernel/reduce.hpp"
#include "node_area.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// How a rank's part of a reduction is computed: `count` elements from every rank's block for it.
struct reduction {
    reduce_function function;
    const void* op;
    std::size_t element_bytes;
    std::size_t count;
    std::byte* out;
    double prescale;
    double postscale;
};

// Moves data between the ranks of one node through memory that all of them have mapped. With
// `Direct`, ranks read each other's tensors where they lie (threads); without, tensors pass through
// the windows in portions that stay in the cache.
template <bool Direct>
class node_transport {
public:
    node_transport(node_area area, int rank, detail::driver& driver)
        : area_(area), rank_(rank), driver_(driver),
          inputs_(std::size_t(area.ranks())) {}

    detail::driver& driver() { return driver_; }
    int rank() const { return rank_; }
    int size() const { return area_.ranks(); }
    const record& record_of(int rank) const { return area_.slot(rank).entry[entries_ & 1]; }

    // Every rank shows its record; afterwards record_of() has them all.
    task enter(const record& mine) {
        ++entries_;
        area_.slot(rank_).entry[entries_ & 1] = mine;
        arrive();
        if (const verdict v = co_await all_arrived(); v != verdict::ready) fail(v);
    }

    // send[p] goes to rank p and fills its receive[me]; sizes agree, own blocks are the caller's.
    task exchange(const block* send, const block* receive) {
        if constexpr (Direct) {
            area_.slot(rank_).blocks.store(send, std::memory_order_relaxed);
            arrive();
            if (const verdict v = co_await all_arrived(); v != verdict::ready) fail(v);
            for (int i = 1; i < size(); ++i) {
                const int peer = (rank_ + i) % size();
                const block& to = receive[peer];
                if (to.bytes > 0) std::memcpy(to.data, from(peer).data, to.bytes);
            }
            arrive();  // peers are done with this rank's tensor
            if (const verdict v = co_await all_arrived(); v != verdict::ready) fail(v);
        } else {
            begin_windows(send, 1, true);
            for (std::uint64_t round = 0;; ++round) {
                fill_window(send, round);
                arrive();
                if (const verdict v = co_await all_arrived(); v != verdict::ready) fail(v);
                for (int p = 0; p < size(); ++p) {
                    const window_plan& plan = plan_of(p);
                    const std::size_t begin = std::min<std::size_t>(round * plan.portion, receive[p].bytes);
                    const std::size_t n = std::min<std::size_t>(plan.portion, receive[p].bytes - begin);
                    if (p != rank_ && n > 0) std::memcpy(receive[p].data + begin, portion_from(p), n);
                }
                ++half_;
                if (round + 1 >= rounds()) break;
            }
        }
    }

    // Reduces every rank's send[me], in rank order.
    task combine(const block* send, const reduction& job) {
        if constexpr (Direct) {
            area_.slot(rank_).blocks.store(send, std::memory_order_relaxed);
            arrive();
            if (const verdict v = co_await all_arrived(); v != verdict::ready) fail(v);
            for (int p = 0; p < size(); ++p) inputs_[std::size_t(p)] = from(p).data;
            reduce_portion(job, 0, job.count);
            arrive();
            if (const verdict v = co_await all_arrived(); v != verdict::ready) fail(v);
        } else {
            begin_windows(send, job.element_bytes, false);
            for (std::uint64_t round = 0;; ++round) {
                fill_window(send, round);
                arrive();
                if (const verdict v = co_await all_arrived(); v != verdict::ready) fail(v);
                reduce_windows(send, job, round);
                ++half_;
                if (round + 1 >= rounds()) break;
            }
        }
    }

    // What user code threw while others waited: kept until the protocol has run to its end.
    std::exception_ptr take_failure() { return std::exchange(failure_, nullptr); }

    // Tells the peers that this rank is gone, with the reason.
    void leave(std::string_view reason) noexcept { area_.leave(rank_, reason); }

private:
    void arrive() {
        ++steps_;
        area_.slot(rank_).step.store(steps_, std::memory_order_release);
    }

    until all_arrived() {
        return {driver_,
                [](void* self) {
                    auto& t = *static_cast<node_transport*>(self);
                    for (int p = 0; p < t.size(); ++p)
                        if (!t.arrived(p)) return false;
                    return true;
                },
                [](void* self) {
                    auto& t = *static_cast<node_transport*>(self);
                    for (int p = 0; p < t.size(); ++p)
                        if (!t.arrived(p) && t.gone(p)) return true;
                    return false;
                },
                this};
    }

    bool arrived(int peer) const {
        return area_.slot(peer).step.load(std::memory_order_acquire) >= steps_;
    }

    bool gone(int peer) const {
        const node_slot& slot = area_.slot(peer);
        if (slot.left.load(std::memory_order_acquire) != 0) return !arrived(peer);
        const auto process = pid_t(slot.process.load(std::memory_order_relaxed));
        return process != 0 && kill(process, 0) != 0 && errno == ESRCH;
    }

    [[noreturn]] void fail(verdict v) {
        driver_.lost = true;
        std::vector<int> missing;
        std::string who;
        for (int p = 0; p < size(); ++p) {
            if (arrived(p) || (v == verdict::hopeless && !gone(p))) continue;
            const node_slot& slot = area_.slot(p);
            append(who, text(missing.empty() ? "rank " : ", rank ", p));
            if (gone(p))
                append(who, slot.left.load(std::memory_order_acquire) != 0
                                ? text(" left (", std::string_view(slot.farewell), ")")
                                : text(" died (process ", slot.process.load(std::memory_order_relaxed), ")"));
            else who += " did not come in time";
            missing.push_back(p);
        }
        throw peer_error(rank_, text("hvd: ", record_of(rank_).label(), " on rank ", rank_, ": ", who), std::move(missing));
    }

    // Threads: what `peer` has for this rank.
    const block& from(int peer) const {
        return area_.slot(peer).blocks.load(std::memory_order_relaxed)[rank_];
    }

    const window_plan& plan_of(int peer) const { return area_.slot(peer).plan[exchanges_ & 1]; }

    std::uint64_t rounds() const {
        std::uint64_t most = 1;
        for (int p = 0; p < size(); ++p) most = std::max(most, plan_of(p).rounds);
        return most;
    }

    // Lays out this rank's window: whole for one receiver or where all get the same, shared otherwise
    // and in reductions, whose rounds hold the same elements of every rank.
    void begin_windows(const block* send, std::size_t unit, bool may_be_whole) {
        ++exchanges_;
        window_plan plan;
        const block* first = nullptr;
        bool alike = may_be_whole;
        std::size_t longest = 0;
        for (int p = 0; p < size(); ++p) {
            if (p == rank_ || send[p].bytes == 0) continue;
            if (first == nullptr) first = &send[p];
            alike = alike && send[p].data == first->data && send[p].bytes == first->bytes;
            longest = std::max(longest, send[p].bytes);
        }
        const std::size_t peers = std::size_t(std::max(size() - 1, 1));
        const std::size_t share = alike ? area_.window_bytes() : area_.window_bytes() / peers / 64 * 64;
        plan.portion = share / unit * unit;
        plan.stride = alike ? 0 : share;
        plan.rounds = (longest + plan.portion - 1) / plan.portion;
        area_.slot(rank_).plan[exchanges_ & 1] = plan;
    }

    void fill_window(const block* send, std::uint64_t round) {
        const window_plan& plan = plan_of(rank_);
        for (int p = 0; p < size(); ++p) {
            const std::size_t begin = round * plan.portion;
            if (p == rank_ || begin >= send[p].bytes) continue;
            const std::size_t n = std::min<std::size_t>(plan.portion, send[p].bytes - begin);
            std::memcpy(area_.window(rank_, half_) + place_of(p, rank_) * plan.stride, send[p].data + begin, n);
            if (plan.stride == 0) return;
        }
    }

    const std::byte* portion_from(int peer) const {
        return area_.window(peer, half_) + place_of(rank_, peer) * plan_of(peer).stride;
    }

    // Where in its window a sender keeps what is for `receiver`: it has no place for itself.
    static std::size_t place_of(int receiver, int sender) {
        return std::size_t(receiver < sender ? receiver : receiver - 1);
    }

    void reduce_windows(const block* send, const reduction& job, std::uint64_t round) {
        const std::size_t portion = size() == 1 ? job.count : plan_of(rank_).portion / job.element_bytes;
        const std::size_t first = std::min<std::size_t>(round * portion, job.count);
        const std::size_t n = std::min(portion, job.count - first);
        for (int p = 0; p < size(); ++p)
            inputs_[std::size_t(p)] = p == rank_ ? send[p].data + first * job.element_bytes : portion_from(p);
        reduce_portion(job, first, n);
    }

    void reduce_portion(const reduction& job, std::size_t first, std::size_t n) {
        if (n == 0 || failure_) return;
        try {
            job.function({job.op, inputs_.data(), size(), size(), job.out + first * job.element_bytes, n, job.prescale,
                          job.postscale});
        } catch (...) {
            failure_ = std::current_exception();  // told to the peers at the end, so that none waits
        }
    }

    node_area area_;
    int rank_;
    detail::driver& driver_;
    std::uint64_t steps_ = 0, entries_ = 0, exchanges_ = 0, half_ = 0;
    std::vector<const std::byte*> inputs_;
    std::exception_ptr failure_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
