// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>

#include <signal.h>

#include "../../core/tuning.hpp"
#include "../transport.hpp"
#include "shm_region.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The ranks of one node: how they wait for each other and show each other things.
//
// All ranks synchronise in the same places: a rank says that it has arrived, and goes on once all
// have. A window is filled before that and read after it. There are two halves, which take turns:
// whoever fills one for the second time has seen every rank arrive after having read it.
class shm_barrier : public transport {
public:
    shm_barrier(const shm_region& region, int rank)
        : transport(rank, region.ranks()), region_(region), crowded_(region.is_crowded()) {}

    void enter(const call_header& mine) override {
        show(mine);
        arrive();
    }

    bool ready() override {
        for (int p = 0; p < size_; ++p)
            if (!arrived(p)) return false;
        return true;
    }

    bool hopeless() override {
        for (int p = 0; p < size_; ++p)
            if (!arrived(p) && gone(p)) return true;
        return false;
    }

    bool may_spin() const override { return !crowded_; }

    [[gnu::cold]] void fail(verdict reason) override {
        std::vector<int> missing;
        const message who = describe_missing(reason, missing, [](int p) { return p; });
        if (missing.empty()) return;
        lost = true;
        throw peer_error(rank_,
                         text("hvd: ", entry_of(rank_).label(), " on rank ", rank_, ": ", who),
                         std::move(missing));
    }

    // Who is waited for, by the ranks' numbers that `number` gives, and what became of them.
    template <class F>
    [[gnu::cold]] message describe_missing(verdict reason, std::vector<int>& missing,
                                           F number) const {
        message who;
        for (int p = 0; p < size_; ++p) {
            if (arrived(p) || (reason == verdict::hopeless && !gone(p))) continue;
            const node_slot& slot = region_.slot(p);
            who += text(missing.empty() ? "rank " : ", rank ", number(p));
            if (!gone(p)) who += " did not come in time";
            else if (slot.left.load() != 0)
                who += text(" left (", std::string_view(slot.farewell), ")");
            else who += text(" died (process ", slot.process.load_relaxed(), ")");
            missing.push_back(number(p));
        }
        return who;
    }

    // Afterwards this rank's tensors are its caller's again, so that it waits until nobody reaches
    // for them: threads as long as it takes, for they compute; a process may have been stopped, and
    // has its own mapping.
    void leave(std::string_view reason, std::int64_t) noexcept override {
        region_.leave(rank_, reason);
        const time_point limit = now() + tuning::reach_patience;
        for (int p = 0; p < size_; ++p) {
            const node_slot& slot = region_.slot(p);
            while (p != rank_ && slot.reaches.load_in_order() != 0 && !gone(p) &&
                   (slot.process.load_relaxed() == 0 || now() < limit))
                sleep_for(tuning::sleep_time);
        }
    }

protected:
    // Every rank takes a new half of its window when it enters, whether it has something for it or
    // not.
    void show(const call_header& mine) {
        ++entries_;
        copy_header(region_.slot(rank_).entry[entries_ & 1], mine);
        take_window();
    }

    const call_header& entry_of(int peer) const { return region_.slot(peer).entry[entries_ & 1]; }

    void arrive() {
        ++steps_;
        region_.slot(rank_).step.store(steps_);
    }

    // Does what reads or writes other ranks' tensors, unless a rank has left: then its may be no
    // more, and the next wait tells.
    template <class F>
    void reach(F f) {
        struct reaching {
            atomic<std::uint32_t>& flag;
            explicit reaching(atomic<std::uint32_t>& f) : flag(f) { flag.exchange(1); }
            ~reaching() { flag.store(0); }
        } const guard(region_.slot(rank_).reaches);
        for (int p = 0; p < size_; ++p)
            if (region_.slot(p).left.load_in_order() != 0) return;
        f();
    }

    // The half that is filled next; nothing is in it.
    void take_window() {
        ++fills_;
        my_fill().what = content::nothing;
    }
    window_fill& my_fill() { return region_.slot(rank_).fill[fills_ & 1]; }
    const window_fill& fill_of(int peer) const { return region_.slot(peer).fill[fills_ & 1]; }
    std::byte* window(int rank, std::uint64_t ago = 0) const {
        return region_.window(rank, fills_ - ago);
    }

    // Whether what all ranks have put into their windows is that.
    bool all_filled(content what) const {
        for (int p = 0; p < size_; ++p)
            if (fill_of(p).what != what) return false;
        return true;
    }

    // Number `index` of the places in a window, which has room for room_for_places() of them.
    void put_place(std::size_t index, const place& p) {
        std::memcpy(window(rank_) + index * sizeof p, &p, sizeof p);
    }
    std::byte* at_place(int peer, std::size_t index) const {
        place p;
        std::memcpy(&p, window(peer) + index * sizeof p, sizeof p);
        return region_.reachable().at(p);
    }
    std::size_t room_for_places() const { return region_.window_bytes() / sizeof(place); }
    place place_of(const std::byte* data, std::size_t bytes) const {
        return region_.reachable().find(data, bytes);
    }

    shm_region region_;
    bool crowded_;

private:
    bool arrived(int peer) const { return region_.slot(peer).step.load() >= steps_; }

    bool gone(int peer) const {
        const node_slot& slot = region_.slot(peer);
        if (slot.left.load() != 0) return !arrived(peer);
        const auto process = pid_t(slot.process.load_relaxed());
        return process > 0 && kill(process, 0) != 0 && errno == ESRCH;
    }

    std::uint64_t steps_ = 0, entries_ = 0, fills_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
