// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <hvd/communicator.hpp>

#include "machine.hpp"

// An endpoint of hvd on a simulated machine: see docs/adding_a_backend.md. It is for benchmarks and
// tests.
namespace simulated {

class endpoint;

/// A queue that takes no memory while it is empty: there is one for each pair of ranks.
template <class T>
class queue {
public:
    bool empty() const { return items_.empty(); }
    T& front() { return items_[first_]; }
    void push_back(T item) { items_.push_back(std::move(item)); }
    void pop_front() {
        if (++first_ == items_.size()) clear();
    }
    void clear() noexcept {
        items_.clear();
        first_ = 0;
    }

private:
    std::vector<T> items_;
    std::size_t first_ = 0;
};

/// The connections of one communicator. The actors take turns, so nothing is locked.
class group {
public:
    group(machine& m, std::vector<int> members)
        : of(m), members(std::move(members)), endpoints(this->members.size()) {}

    std::shared_ptr<group> branch(int context, std::span<const int> ranks) {
        auto& [made, missing] = branches_[{context, ranks.front()}];
        if (made == nullptr) {
            std::vector<int> chosen;
            for (const int r : ranks) chosen.push_back(members[std::size_t(r)]);
            made = std::make_shared<group>(of, std::move(chosen));
            missing = int(ranks.size());
        }
        const auto result = made;
        if (--missing == 0) branches_.erase({context, ranks.front()});
        return result;
    }

    struct message {
        std::vector<std::byte> data;
        double arrives;
    };
    // The messages from one rank that its receiver has not asked for, or the places that wait.
    struct channel {
        queue<message> came;
        queue<std::pair<std::byte*, std::size_t>> places;
        double last = 0;    // when the last message that filled a place arrives
        double newest = 0;  // when the last message that was sent arrives
    };

    machine& of;
    const std::vector<int> members;  // their numbers in the machine
    std::vector<endpoint*> endpoints;
    std::map<std::pair<int, int>, channel> early;  // to ranks that have no endpoint yet

private:
    std::map<std::pair<int, int>, std::pair<std::shared_ptr<group>, int>> branches_;
};

class endpoint final : public awaited {
public:
    endpoint(std::shared_ptr<group> g, int rank)
        : group_(std::move(g)), rank_(rank), channels_(group_->members.size()) {
        group_->endpoints[std::size_t(rank)] = this;
        for (int p = 0; p < size(); ++p)
            if (const auto found = group_->early.find({p, rank}); found != group_->early.end()) {
                channel_of(p) = std::move(found->second);
                group_->early.erase(found);
            }
        state().endpoints.insert(this);
    }
    endpoint(const endpoint&) = delete;
    endpoint& operator=(const endpoint&) = delete;
    ~endpoint() override {
        group_->endpoints[std::size_t(rank_)] = nullptr;
        state().endpoints.erase(this);
    }

    // A message of at most so many bytes may be shorter than its place, as over hvd::tcp.
    static constexpr std::size_t fills_larger = std::size_t(1) << 20;

    int rank() const { return rank_; }
    int size() const { return int(group_->members.size()); }
    int node_of(int) const { return 0; }  // a processor for all: see machine.cpp

    /// Complete at once: the machine has a copy.
    void send(int peer, const std::byte* data, std::size_t bytes) {
        machine& m = group_->of;
        if (headers_ == nullptr) headers_ = data;  // a call begins with its header
        const bool is_data = data != headers_;
        const double counted = double(bytes) * double(is_data ? m.what.counted : 1);
        group::message sent{{}, m.transfer(number(rank_), number(peer), counted)};
        if (!is_data || m.what.copies) sent.data.assign(data, data + bytes);
        endpoint* const to = group_->endpoints[std::size_t(peer)];
        group::channel& c = to != nullptr ? to->channel_of(rank_) : group_->early[{rank_, peer}];
        c.newest = sent.arrives = std::max(c.newest, sent.arrives);  // no message overtakes another
        ++state().begun;
        if (to != nullptr) to->arrive(rank_, std::move(sent));
        else c.came.push_back(std::move(sent));
    }

    void recv(int peer, std::byte* data, std::size_t bytes) {
        ++state().begun;
        group::channel& c = channel_of(peer);
        if (c.came.empty()) {
            c.places.push_back({data, bytes});
            ++missing_;
            return;
        }
        fill(c, data, c.came.front());
        c.came.pop_front();
    }

    bool poll() { return missing_ == 0 && last_ <= now(); }
    bool pending(int peer) const {
        const group::channel& c = channels_[std::size_t(peer)];
        return !c.places.empty() || c.last > now();
    }
    void cancel() noexcept {
        for (auto& c : channels_) c.places.clear();
        missing_ = 0;
        last_ = 0;
    }

    void sleep(std::int64_t nanoseconds) { state().wait_until(now() + double(nanoseconds) * 1e-9); }

    std::unique_ptr<endpoint> subset(std::span<const int> ranks, int context) const {
        int me = 0;
        while (ranks[std::size_t(me)] != rank_) ++me;
        return std::make_unique<endpoint>(group_->branch(context, ranks), me);
    }

    double complete_at() const override { return missing_ == 0 ? last_ : forever; }
    bool has_begun() const override { return missing_ > 0 || last_ > now(); }

private:
    void arrive(int from, group::message&& m) {
        group::channel& c = channel_of(from);
        if (c.places.empty()) return c.came.push_back(std::move(m));
        fill(c, c.places.front().first, m);
        c.places.pop_front();
        if (--missing_ == 0) state().wake();
    }

    void fill(group::channel& c, std::byte* place, const group::message& m) {
        if (!m.data.empty()) std::memcpy(place, m.data.data(), m.data.size());
        c.last = m.arrives;
        last_ = std::max(last_, m.arrives);
    }

    int number(int rank) const { return group_->members[std::size_t(rank)]; }
    rank_state& state() const { return group_->of.states[std::size_t(number(rank_))]; }
    group::channel& channel_of(int peer) { return channels_[std::size_t(peer)]; }

    std::shared_ptr<group> group_;
    int rank_;
    std::vector<group::channel> channels_;
    std::size_t missing_ = 0;
    const std::byte* headers_ = nullptr;  // from where hvd sends them
    double last_ = 0;
};

/// The backend of these endpoints.
struct backend {
    using endpoint_type = endpoint;
};

static_assert(hvd::backend<backend>);

using communicator = hvd::communicator<backend>;

}  // namespace simulated
