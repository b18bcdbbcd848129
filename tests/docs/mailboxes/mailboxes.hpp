// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The backend of docs/adding_a_backend.md: ranks are threads that leave messages for each other.

//! [office]
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <hvd/communicator.hpp>

// The ranks share a queue of messages for each pair of them.
class post_office {
public:
    explicit post_office(int ranks) : ranks_(ranks), queues_(std::size_t(ranks * ranks)) {}

    int ranks() const { return ranks_; }

    void put(int from, int to, const std::byte* data, std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        queue(from, to).emplace_back(data, data + bytes);
    }

    // False: nothing there yet.
    bool take(int from, int to, std::span<std::byte> destination) {
        const std::lock_guard lock(mutex_);
        if (queue(from, to).empty()) return false;
        std::memcpy(destination.data(), queue(from, to).front().data(), destination.size());
        queue(from, to).pop_front();
        return true;
    }

    // The office of some of the ranks: made by the first of them to come, dropped by the last.
    std::shared_ptr<post_office> branch(int context, std::span<const int> members) {
        const std::lock_guard lock(mutex_);
        const std::pair key(context, members.front());
        auto& [office, missing] = branches_[key];
        if (office == nullptr) {
            office = std::make_shared<post_office>(int(members.size()));
            missing = office->ranks();
        }
        const std::shared_ptr<post_office> result = office;
        if (--missing == 0) branches_.erase(key);
        return result;
    }

private:
    using message = std::vector<std::byte>;

    std::deque<message>& queue(int from, int to) {
        return queues_[std::size_t(from * ranks_ + to)];
    }

    int ranks_;
    std::mutex mutex_;
    std::vector<std::deque<message>> queues_;
    std::map<std::pair<int, int>, std::pair<std::shared_ptr<post_office>, int>> branches_;
};
//! [office]

//! [endpoint]
class mailbox_endpoint {
public:
    mailbox_endpoint(std::shared_ptr<post_office> office, int rank)
        : office_(std::move(office)), rank_(rank), expected_(std::size_t(office_->ranks())) {}

    int rank() const { return rank_; }
    int size() const { return office_->ranks(); }

    // Complete at once: the office has a copy.
    void send(int peer, const std::byte* data, std::size_t bytes) {
        office_->put(rank_, peer, data, bytes);
    }

    void recv(int peer, std::byte* data, std::size_t bytes) {
        expected_[std::size_t(peer)].push_back({data, bytes});
    }

    bool poll() {
        bool complete = true;
        for (int peer = 0; peer < size(); ++peer) {
            auto& places = expected_[std::size_t(peer)];
            while (!places.empty() && office_->take(peer, rank_, places.front()))
                places.pop_front();
            complete = complete && places.empty();
        }
        return complete;
    }

    bool pending(int peer) const { return !expected_[std::size_t(peer)].empty(); }

    void cancel() noexcept {
        for (auto& places : expected_) places.clear();
    }
    //! [endpoint]

    //! [optional]
    // Makes split(), subset(), local() and cross() work.
    std::unique_ptr<mailbox_endpoint> subset(std::span<const int> ranks, int context) const {
        int me = 0;
        while (ranks[std::size_t(me)] != rank_) ++me;
        return std::make_unique<mailbox_endpoint>(office_->branch(context, ranks), me);
    }

    // All ranks are in one process: one node.
    int node_of(int) const { return 0; }

    // Asynchronous calls may go on in a thread of the communicator's.
    bool threaded() const { return true; }
    //! [optional]

private:
    std::shared_ptr<post_office> office_;
    int rank_;
    std::vector<std::deque<std::span<std::byte>>> expected_;  // by peer
};

//! [backend]
struct mailboxes {
    using endpoint_type = mailbox_endpoint;
};

static_assert(hvd::backend<mailboxes>);
//! [backend]
