// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>

#include "../../kernel/cuda/reduction.hpp"
#include "../../protocol/host_ranks.hpp"
#include "../parts.hpp"
#include "events.hpp"
#include "memory.hpp"
#include "message.hpp"
#include "signals.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Everything by which a rank reaches the others. On the host these are endpoints, one for the calls
// and one for the farewell. Streams use signals, or else events. Memory is mapped: a window of two
// halves, and arenas.
class ipc_reach {
public:
    static constexpr const char* name = "communicator<cuda_ipc>";

    // Connects the ranks, on the current device. **Collective**.
    void connect(std::unique_ptr<host_ranks> calls, std::unique_ptr<host_ranks> farewell,
                 int device, cudaStream_t stream, std::size_t room, time_point limit) {
        calls_ = std::move(calls);
        farewell_ = std::move(farewell);
        rank_ = calls_->rank();
        room_ = room;
        ipc_home own;
        run_on_all(*calls_, name, limit, [&] { own = ipc_home::of_this_rank(device, rank_); });
        homes_ = calls_->all(own, limit);
        // Each rank finds the second half of another's window, and cuts its calls, by its own size.
        agree_on_values(*calls_, name, limit,
                        [&](auto say) { say(".device_window_bytes in whole units", text(room)); });
        run_on_all(*calls_, name, limit, [&] {
            if (calls_->size() > most_reduced_ranks)
                throw usage_error(rank_,
                                  text("hvd: ", name, " on rank ", rank_, ": ", calls_->size(),
                                       " ranks, it takes up to ", most_reduced_ranks));
            reach_all(homes_, device, rank_);
        });
        ipc_events::offer mine{};
        run_on_all(*calls_, name, limit, [&] {
            events_.create(rank_);
            mine = events_.exported(homes_, rank_);
            window_.allocate(2 * room_, rank_);
        });
        const auto offers = calls_->all(mine, limit);
        run_on_all(*calls_, name, limit, [&] { events_.open(offers, homes_, rank_); });
        share(window_, limit);
        signals_.connect(*calls_, homes_, stream, limit);
    }

    bool is_connected() const { return farewell_ != nullptr; }
    host_ranks& calls() { return *calls_; }
    host_ranks& farewell() { return *farewell_; }
    ipc_events& events() { return events_; }
    ipc_signals& signals() { return signals_; }
    const ipc_signals& signals() const { return signals_; }

    // Tells peers that wait on the host.
    void leave() noexcept {
        signals_.leave();
        calls_ = {};
    }

    // The arena gets the next number, which is the same on all ranks.
    ipc_memory& add_arena(std::unique_ptr<ipc_memory> arena) {
        return *arenas_.emplace_back(std::move(arena));
    }

    std::unique_ptr<ipc_memory>* find_arena(const std::byte* own) {
        for (auto& arena : arenas_)
            if (arena != nullptr && arena->own() == own) return &arena;
        return nullptr;
    }

    // Shares the memory with all ranks. **Collective**.
    void share(ipc_memory& memory, time_point limit) {
        ipc_memory::offer mine{};
        run_on_all(*calls_, name, limit, [&] { mine = memory.exported(homes_, rank_); });
        const auto offers = calls_->all(mine, limit);
        run_on_all(*calls_, name, limit, [&] { memory.open(offers, homes_, rank_); });
    }

    // Returns the place where others find a tensor of this rank: an arena if it may stay there, or
    // else the window.
    ipc_place place_of(const std::byte* data, std::size_t bytes, bool may_stay) const {
        if (bytes == 0) return {};
        for (std::size_t a = 0; may_stay && a < arenas_.size(); ++a)
            if (arenas_[a] != nullptr && arenas_[a]->has(data, bytes))
                return {std::int32_t(a), std::uint64_t(data - arenas_[a]->own())};
        return {ipc_place::window, 0};
    }

    // The places of a call that is not small.
    ipc_places places_of(const call_parts& p) const {
        ipc_places result;
        if (p.gives(rank_))
            result.in = place_of(p.call.in, p.given_by(rank_), !p.overwrites_input());
        if (p.is_given(rank_)) result.out = place_of(p.call.out, p.taken_by(rank_), true);
        return result;
    }

    std::byte* in_window(int rank, std::size_t half) const {
        return window_.of(rank) + half * room_;
    }
    std::byte* in_arena(int rank, const ipc_place& place) const {
        return arenas_[std::size_t(place.arena)]->of(rank) + place.offset;
    }

    // Memory that peers may use is freed only after they report that they no longer use it. If they
    // do not report, it is never freed.
    void end(bool finished, time_point limit) noexcept {
        if (!is_connected()) return;
        leave();
        try {
            if (finished) {
                for_all_memory([](ipc_memory& m) { m.close(); });
                events_.close();
                farewell_->all('e', limit);
                return signals_.end(true);
            }
        } catch (...) {
        }
        signals_.release(now());  // streams of others may wait for a call that does not come
        signals_.end(finished);
        for_all_memory([](ipc_memory& m) { m.keep(); });
        events_.keep();
    }

private:
    template <class F>
    void for_all_memory(F&& f) {
        f(window_);
        for (const auto& arena : arenas_)
            if (arena != nullptr) f(*arena);
    }

    std::unique_ptr<host_ranks> calls_, farewell_;  // the first is null after leave()
    int rank_ = 0;
    std::size_t room_ = 0;  // bytes of each half of the window
    std::vector<ipc_home> homes_;
    ipc_events events_;
    ipc_signals signals_;
    ipc_memory window_;
    std::vector<std::unique_ptr<ipc_memory>> arenas_;  // by number; null when closed
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
