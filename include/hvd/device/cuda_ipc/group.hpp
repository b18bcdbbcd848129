// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../protocol/host_ranks.hpp"
#include "../call.hpp"
#include "../parts.hpp"
#include "message.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The calls that are enqueued together, and the ranks' messages about them.
class ipc_group {
public:
    void begin(std::span<const collective_call> calls, int size) {
        size_ = std::size_t(size);
        parts_.clear();
        for (const collective_call& call : calls) parts_.push_back({call, size});
        places_.assign(parts_.size() * size_, {});
        small_ = 0;
        mine_ = {};
        mine_.header = header_of(calls, size);
    }

    std::span<const call_parts> parts() const { return parts_; }
    const call_parts& parts(std::size_t call) const { return parts_[call]; }
    const ipc_places& places(std::size_t call, int rank) const {
        return places_[std::size_t(rank) * parts_.size() + call];
    }

    // Sets a place of this rank.
    void put(std::size_t call, int rank, const ipc_places& p) {
        places_[std::size_t(rank) * parts_.size() + call] = p;
        if (call < ipc_message::most_places) mine_.places[call] = p;
    }
    // The inputs of a small call go through the window, so that the ranks need not meet again.
    // Every rank knows the places of all.
    void put_small(std::size_t call, int rank) {
        const call_parts& p = parts_[call];
        ++small_;
        for (int r = 0; r < int(size_); ++r) {
            ipc_places places;
            if (p.gives(r) && p.given_by(r) > 0) places.in = {ipc_place::window, 0};
            if (r == rank) put(call, r, places);
            else places_[std::size_t(r) * parts_.size() + call] = places;
        }
    }
    // True if this rank knows everything that the others would tell it.
    bool is_known() const { return small_ == parts_.size() && !mine_.header.refused; }
    void refuse(std::string_view why) { mine_.header.refuse(why); }
    const ipc_message& message() const { return mine_; }

    // True if a tensor goes through a window. Before the others have sent their places, it tells
    // this for this rank's tensors and for small calls.
    bool needs_window() const {
        for (const auto& [in, out] : places_)
            if (in.arena == ipc_place::window || out.arena == ipc_place::window) return true;
        return false;
    }

    // True if ranks read or write tensors of others where they lie.
    bool stays_in_place() const {
        for (const auto& [in, out] : places_)
            if (in.arena >= 0 || out.arena != ipc_place::nowhere) return true;
        return false;
    }

    // True if its ranks know only after a meeting how it is cut.
    bool has_uneven_exchange() const {
        for (const call_parts& p : parts_)
            if (p.is_uneven_exchange()) return true;
        return false;
    }

    // Throws if the ranks' calls differ. It returns true if there are more places than a message
    // holds.
    bool learn(int rank, const std::vector<ipc_message>& all) {
        table<const call_header*> headers(all.size());
        for (std::size_t r = 0; r < all.size(); ++r) headers[r] = &all[r].header;
        check_headers(rank, headers.data(), int(headers.size()));
        for (std::size_t r = 0; r < size_; ++r)
            for (std::size_t c = 0; c < parts_.size() && c < ipc_message::most_places; ++c)
                places_[r * parts_.size() + c] = all[r].places[c];
        return parts_.size() > ipc_message::most_places;
    }

    void exchange_places(host_ranks& ranks, time_point limit) {
        const std::size_t n = parts_.size(), first = ipc_message::most_places, more = n - first;
        std::vector<ipc_places> all(more * size_);
        const std::span own(places_.data() + std::size_t(ranks.rank()) * n + first, more);
        ranks.allgather(std::as_bytes(own), reinterpret_cast<std::byte*>(all.data()), limit);
        for (std::size_t r = 0; r < size_; ++r)
            for (std::size_t c = 0; c < more; ++c) places_[r * n + first + c] = all[r * more + c];
    }

    // Exchanges the counts that each rank sends to each in an alltoall, and those it expects.
    void exchange_counts(host_ranks& ranks, time_point limit) {
        counts_.clear();
        for (call_parts& p : parts_) {
            if (!p.is_uneven_exchange()) continue;
            std::vector<std::uint64_t> own(p.call.counts.begin(), p.call.counts.end()),
                all(2 * size_ * size_);
            own.insert(own.end(), p.call.receive_counts.begin(), p.call.receive_counts.end());
            ranks.allgather(std::as_bytes(std::span(own)), reinterpret_cast<std::byte*>(all.data()),
                            limit);
            counts_.push_back(std::move(all));
        }
    }

    // Throws if these differ.
    void learn_counts(int rank) {
        auto next = counts_.begin();
        for (call_parts& p : parts_) {
            if (!p.is_uneven_exchange()) continue;
            const std::vector<std::uint64_t> all = std::exchange(*next, {});
            for (std::size_t from = 0; from < size_; ++from)
                for (std::size_t to = 0; to < size_; ++to) {
                    const std::uint64_t given = next->emplace_back(all[2 * size_ * from + to]),
                                        taken = all[2 * size_ * to + size_ + from];
                    if (given != taken) throw_unequal(rank, int(from), given, int(to), taken);
                }
            p.sent = next++->data();
        }
    }

private:
    [[gnu::cold, noreturn]] static void throw_unequal(int rank, int from, std::uint64_t given,
                                                      int to, std::uint64_t taken) {
        const detail::message values[] = {text("sends ", given, " to rank ", to),
                                          text("expects ", taken, " from rank ", from)};
        const mismatch_error::entry table[] = {{from, values[0]}, {to, values[1]}};
        throw_mismatch(rank, "alltoall", "count", table, table_style::one_line);
    }

    std::size_t size_ = 0, small_ = 0;  // ranks, and calls that are small
    std::vector<call_parts> parts_;
    std::vector<ipc_places> places_;  // the places of rank 0's calls, of rank 1's, …
    ipc_message mine_{};
    // the counts of each alltoall with different parts
    std::vector<std::vector<std::uint64_t>> counts_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
