// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Forked processes as the ranks of a host communicator, without MPI. A test on a GPU makes its
// communicators from it as a user makes them from MPI's.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <hvd/communicator.hpp>

namespace device_test {

// A socket between each pair of processes. They are made before the fork.
class fork_sockets {
public:
    explicit fork_sockets(int ranks) : ranks_(ranks), files_(std::size_t(ranks * ranks), -1) {
        for (int a = 0; a < ranks; ++a)
            for (int b = a + 1; b < ranks; ++b) {
                int pair[2];
                if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0)
                    throw hvd::usage_error(-1, "hvd: no socket pair for this test");
                file(a, b) = pair[0];
                file(b, a) = pair[1];
            }
    }
    fork_sockets(const fork_sockets&) = delete;
    ~fork_sockets() {
        for (const int f : files_)
            if (f >= 0) close(f);
    }

    // Leaves only the sockets of one rank open, so that the others learn when it ends.
    void keep(int rank) {
        for (int a = 0; a < ranks_; ++a)
            for (int b = 0; b < ranks_; ++b)
                if (a != rank && file(a, b) >= 0) close(std::exchange(file(a, b), -1));
    }

    int ranks() const { return ranks_; }
    int& file(int from, int to) { return files_[std::size_t(from * ranks_ + to)]; }

private:
    int ranks_;
    std::vector<int> files_;
};

// One process's letters: those that wait to be sent, and those that came, by communicator. Each of
// its threads may use another communicator.
class fork_post {
public:
    fork_post(fork_sockets& sockets, int rank)
        : sockets_(sockets),
          rank_(rank),
          leaving_(std::size_t(sockets.ranks())),
          coming_(std::size_t(sockets.ranks())) {}

    int rank() const { return rank_; }
    int ranks() const { return sockets_.ranks(); }

    void put(std::uint64_t context, int to, const std::byte* data, std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        const letter_header header{context, bytes};
        auto& out = leaving_[std::size_t(to)];
        const auto* const head = reinterpret_cast<const std::byte*>(&header);
        out.insert(out.end(), head, head + sizeof header);
        out.insert(out.end(), data, data + bytes);
        pump();
    }

    bool take(std::uint64_t context, int from, std::span<std::byte> destination) {
        const std::lock_guard lock(mutex_);
        auto& letters = read_[{context, from}];
        if (letters.empty()) return false;
        std::memcpy(destination.data(), letters.front().data(), destination.size());
        letters.pop_front();
        return true;
    }

    bool has_left(int to) const {
        const std::lock_guard lock(mutex_);
        return leaving_[std::size_t(to)].empty();
    }

    void pump() {
        const std::lock_guard lock(mutex_);
        for (int peer = 0; peer < ranks(); ++peer) {
            if (peer == rank_) continue;
            send_some(peer);
            while (receive_some(peer)) {
            }
        }
    }

private:
    struct letter_header {
        std::uint64_t context, bytes;
    };

    void send_some(int peer) {
        auto& out = leaving_[std::size_t(peer)];
        while (!out.empty()) {
            const ssize_t n =
                ::send(sockets_.file(rank_, peer), out.data(), out.size(), MSG_NOSIGNAL);
            if (n <= 0) {
                if (errno != EAGAIN) out.clear();  // nobody reads it any more
                return;
            }
            out.erase(out.begin(), out.begin() + n);
        }
    }

    bool receive_some(int peer) {
        std::byte some[4096];
        const ssize_t n = ::recv(sockets_.file(rank_, peer), some, sizeof some, 0);
        if (n <= 0) return false;
        auto& in = coming_[std::size_t(peer)];
        in.insert(in.end(), some, some + n);
        letter_header header;
        while (in.size() >= sizeof header) {
            std::memcpy(&header, in.data(), sizeof header);
            if (in.size() < sizeof header + header.bytes) break;
            const auto begin = in.begin() + sizeof header;
            read_[{header.context, peer}].emplace_back(begin, begin + long(header.bytes));
            in.erase(in.begin(), begin + long(header.bytes));
        }
        return true;
    }

    fork_sockets& sockets_;
    int rank_;
    mutable std::recursive_mutex mutex_;
    std::vector<std::vector<std::byte>> leaving_, coming_;  // by peer
    std::map<std::pair<std::uint64_t, int>, std::deque<std::vector<std::byte>>> read_;
};

class fork_endpoint {
public:
    explicit fork_endpoint(std::shared_ptr<fork_post> post) : post_(std::move(post)) {
        for (int r = 0; r < post_->ranks(); ++r) members_.push_back(r);
        rank_ = post_->rank();
        expected_.resize(members_.size());
    }

    int rank() const { return rank_; }
    int size() const { return int(members_.size()); }

    void send(int peer, const std::byte* data, std::size_t bytes) {
        post_->put(context_, member(peer), data, bytes);
    }
    void recv(int peer, std::byte* data, std::size_t bytes) {
        expected_[std::size_t(peer)].push_back({data, bytes});
    }
    bool poll() {
        post_->pump();
        bool complete = true;
        for (int peer = 0; peer < size(); ++peer) {
            auto& places = expected_[std::size_t(peer)];
            while (!places.empty() && post_->take(context_, member(peer), places.front()))
                places.pop_front();
            complete = complete && !pending(peer);
        }
        return complete;
    }
    bool pending(int peer) const {
        return !expected_[std::size_t(peer)].empty() ||
               (peer != rank_ && !post_->has_left(member(peer)));
    }
    void cancel() noexcept {
        for (auto& places : expected_) places.clear();
    }

    // A communicator within this one has a context of its own, which names its first member too.
    std::unique_ptr<fork_endpoint> subset(std::span<const int> ranks, int context) const {
        auto part = std::make_unique<fork_endpoint>(post_);
        part->members_.clear();
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            if (ranks[i] == rank_) part->rank_ = int(i);
            part->members_.push_back(member(ranks[i]));
        }
        part->expected_.resize(ranks.size());
        part->context_ =
            context_ * 4096 + std::uint64_t(context + 1) * 8 + std::uint64_t(part->members_[0]) + 1;
        return part;
    }
    int node_of(int) const { return 0; }
    bool threaded() const { return true; }

private:
    int member(int peer) const { return members_[std::size_t(peer)]; }

    std::shared_ptr<fork_post> post_;
    std::vector<int> members_;
    int rank_ = 0;
    std::uint64_t context_ = 0;
    std::vector<std::deque<std::span<std::byte>>> expected_;  // by peer
};

struct forked {
    using endpoint_type = fork_endpoint;
};
static_assert(hvd::backend<forked>);

// Runs f in its own process, since CUDA does not survive a fork. f returns the exit status.
template <class F>
pid_t in_a_process(F f) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child != 0) return child;
    const int status = f();
    std::fflush(nullptr);
    _exit(status);
}

inline int status_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs f(world) in `ranks` processes. Returns the exit status of each.
template <class F>
std::vector<int> run_forked(int ranks, F f) {
    fork_sockets sockets(ranks);
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks; ++rank)
        children.push_back(in_a_process([&] {
            sockets.keep(rank);
            hvd::communicator<forked> world(
                std::make_unique<fork_endpoint>(std::make_shared<fork_post>(sockets, rank)),
                {.timeout = std::chrono::seconds(60)});
            return f(world);
        }));
    std::vector<int> result;
    for (const pid_t child : children) result.push_back(status_of(child));
    return result;
}

}  // namespace device_test
