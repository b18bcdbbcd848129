// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Ranks that one thread drives, step by step, so that a test decides who does what when. The
// backend has no progress thread: a call goes on when its request is tested.

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <hvd/threads.hpp>

#include "../collective/neighbours.hpp"

namespace hvd_test {

// How the ranks of a communicator reach each other.
struct way {
    const char* name;
    placement node_of;
    bool reachable;  // tensors can be read and written where they lie
    bool crosses;    // there may be several nodes
};
inline constexpr way ways[] = {
    {"in one memory", [](int) { return 0; }, true, false},
    {"through windows", [](int) { return 0; }, false, false},
    {"on nodes of two", [](int rank) { return rank / 2; }, true, true},
    {"on two nodes", [](int rank) { return rank % 2; }, false, true},
};

struct notices_by_hand {
    std::mutex mutex;
    std::vector<std::deque<hvd::detail::failure_notice>> to;  // by rank
};

class by_hand_endpoint : public queue_endpoint {
public:
    by_hand_endpoint(std::shared_ptr<post_office> office, int rank, const way& how,
                     std::size_t window)
        : queue_endpoint(std::move(office), rank), how_(how) {
        using namespace hvd::detail;
        const int node = node_of(rank);
        int neighbours = 0;
        for (int p = 0; p < size(); ++p) neighbours += node_of(p) == node;
        window = shm_region::window_for(neighbours, window);
        const std::lock_guard lock(office_->mutex);
        auto& memory = office_->memory[node];
        const bool first = memory == nullptr;
        if (first)
            memory = std::make_shared<shared_memory>(
                shared_memory::of_this_process(shm_region::bytes(neighbours, window)));
        memory_ = std::static_pointer_cast<shared_memory>(memory);
        region_ =
            shm_region(memory_->data(), neighbours, window,
                       how.reachable ? segments::of_this_process() : shared<segments>::make());
        if (first) region_.construct();
        auto& notices = office_->memory[-1];
        if (notices == nullptr) {
            auto made = std::make_shared<notices_by_hand>();
            made->to.resize(std::size_t(size()));
            notices = made;
        }
        notices_ = std::static_pointer_cast<notices_by_hand>(notices);
    }

    int node_of(int rank) const { return how_.node_of(rank); }
    const hvd::detail::shm_region* region() const { return &region_; }

    void send(int peer, const std::byte* data, std::size_t bytes) {
        ++sends_[std::size_t(peer)];
        queue_endpoint::send(peer, data, bytes);
    }
    void recv(int peer, std::byte* data, std::size_t bytes) {
        ++receives_[std::size_t(peer)];
        queue_endpoint::recv(peer, data, bytes);
    }
    std::uint64_t sends_begun(int peer) const { return sends_[std::size_t(peer)]; }
    std::uint64_t receives_begun(int peer) const { return receives_[std::size_t(peer)]; }
    bool send_notice(int peer, const hvd::detail::failure_notice& notice) {
        const std::lock_guard lock(notices_->mutex);
        notices_->to[std::size_t(peer)].push_back(notice);
        return true;
    }
    bool receive_notice(hvd::detail::failure_notice& notice) {
        const std::lock_guard lock(notices_->mutex);
        auto& mine = notices_->to[std::size_t(rank())];
        if (mine.empty()) return false;
        notice = mine.front();
        mine.pop_front();
        return true;
    }

private:
    const way how_;
    std::vector<std::uint64_t> sends_{std::vector<std::uint64_t>(std::size_t(size()))},
        receives_{sends_};
    std::shared_ptr<hvd::detail::shared_memory> memory_;
    hvd::detail::shm_region region_{nullptr, 0, 0, {}};
    std::shared_ptr<notices_by_hand> notices_;
};

struct by_hand {
    using endpoint_type = by_hand_endpoint;
};
static_assert(hvd::backend<by_hand>);
static_assert(hvd::detail::sends_notices<by_hand_endpoint>);

using rank_by_hand = hvd::communicator<by_hand>;

// Makes the communicators of all ranks, and runs `begin(comm)` on a thread for each, for calls that
// wait.
inline std::vector<rank_by_hand> ranks_by_hand(
    int ranks, const way& how, std::size_t window,
    const std::function<void(rank_by_hand&)>& begin = {}) {
    std::vector<rank_by_hand> all(static_cast<std::size_t>(ranks));
    run_in_office(ranks, [&](std::shared_ptr<post_office> office, int rank) {
        rank_by_hand& mine = all[std::size_t(rank)];
        mine =
            rank_by_hand(std::make_unique<by_hand_endpoint>(std::move(office), rank, how, window),
                         {.destructor_timeout = std::chrono::milliseconds(1)});
        if (begin) begin(mine);
    });
    return all;
}

}  // namespace hvd_test
