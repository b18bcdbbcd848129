// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// A simple backend as a user may write it. The ranks are threads, and their messages go through
// queues under one lock.

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <hvd/threads.hpp>

namespace hvd_test {

// The data that the ranks of one communicator share.
struct post_office {
    explicit post_office(int n) : ranks(n), letters(std::size_t(n) * std::size_t(n)) {}

    std::deque<std::vector<std::byte>>& way(int from, int to) {
        return letters[std::size_t(from * ranks + to)];
    }

    const int ranks;
    std::mutex mutex;
    std::vector<std::deque<std::vector<std::byte>>> letters;
    std::map<std::pair<int, int>, std::shared_ptr<post_office>> children;
    std::map<int, std::shared_ptr<void>> memory;  // memory of each node: see neighbours.hpp
    bool closed = false;                          // a rank has left: nobody waits for it
};

class queue_endpoint {
public:
    queue_endpoint(std::shared_ptr<post_office> office, int rank)
        : office_(std::move(office)), rank_(rank) {}

    int rank() const { return rank_; }
    int size() const { return office_->ranks; }
    std::size_t sent = 0;  // messages of this rank

    void send(int peer, const std::byte* data, std::size_t bytes) {
        const std::lock_guard lock(office_->mutex);
        office_->way(rank_, peer).emplace_back(data, data + bytes);
        ++sent;
    }

    void recv(int peer, std::byte* data, std::size_t bytes) {
        wanted_.push_back({peer, data, bytes});
    }

    bool poll() {
        const std::lock_guard lock(office_->mutex);
        std::erase_if(wanted_, [&](const letter& wanted) {
            auto& way = office_->way(wanted.peer, rank_);
            if (way.empty()) return false;
            if (way.front().size() != wanted.bytes)
                throw hvd::error(rank_, "queues: a message of another size");
            std::memcpy(wanted.data, way.front().data(), wanted.bytes);
            way.pop_front();
            return true;
        });
        if (!wanted_.empty() && office_->closed)
            throw hvd::peer_error(rank_, "queues: a rank is gone", {});
        return wanted_.empty();
    }

    bool pending(int peer) const {
        for (const letter& wanted : wanted_)
            if (wanted.peer == peer) return true;
        return false;
    }

    void cancel() noexcept { wanted_.clear(); }

    std::unique_ptr<queue_endpoint> subset(std::span<const int> ranks, int context) {
        auto [office, me] = child(ranks, context);
        return std::make_unique<queue_endpoint>(std::move(office), me);
    }

protected:
    // Returns the office that the ranks of a subset share, and this rank's number among them.
    std::pair<std::shared_ptr<post_office>, int> child(std::span<const int> ranks, int context) {
        const std::lock_guard lock(office_->mutex);
        auto& child = office_->children[{context, ranks.front()}];
        if (child == nullptr) child = std::make_shared<post_office>(int(ranks.size()));
        int me = 0;
        while (ranks[std::size_t(me)] != rank_) ++me;
        return {child, me};
    }

    std::shared_ptr<post_office> office_;
    int rank_;

private:
    struct letter {
        int peer;
        std::byte* data;
        std::size_t bytes;
    };

    std::vector<letter> wanted_;
};

struct queues {
    using endpoint_type = queue_endpoint;
};
static_assert(hvd::backend<queues>);
static_assert(hvd::splittable_endpoint<queue_endpoint>);

// Runs f(office, rank) on `ranks` threads and rethrows the exception of the first to fail.
template <class F>
void run_in_office(int ranks, F f) {
    const auto office = std::make_shared<post_office>(ranks);
    std::exception_ptr failure;
    const auto body = [&](int rank) {
        try {
            f(office, rank);
        } catch (...) {
            const std::lock_guard lock(office->mutex);
            if (!failure) failure = std::current_exception();
            office->closed = true;
        }
    };
    {
        std::vector<std::jthread> threads;
        for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
    }
    if (failure) std::rethrow_exception(failure);
}

// Runs f(comm) on `ranks` threads.
template <class F>
void run_queues(int ranks, F f, const hvd::communicator_options& options = {}) {
    run_in_office(ranks, [&](std::shared_ptr<post_office> office, int rank) {
        hvd::communicator<queues> comm(std::make_unique<queue_endpoint>(std::move(office), rank),
                                       options);
        f(comm);
    });
}

}  // namespace hvd_test
