// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <vector>

#include <unistd.h>

#include "../core/lean/handles.hpp"
#include "../core/settings/launched_ranks.hpp"
#include "../core/settings/tcp_options.hpp"
#include "../protocol/received_headers.hpp"
#include "../transport/frames/tcp_messages.hpp"
#include "../transport/node_map.hpp"
#include "../transport/tcp/tcp_job.hpp"
#include "concept.hpp"
#include "node_memory.hpp"
#include "node_size.hpp"

namespace hvd::inline v0 {
namespace detail {

// A process whose place nobody has told is the only one.
// @throws hvd::usage_error if a launcher has started several
[[gnu::cold]] inline void require_tcp_ranks(const tcp_options& own) {
    if (!is_alone(own)) return;
    refuse_to_be_alone("tcp", false, [](const launched_ranks&) {
        return "start it by hvdrun, or set HVD_RENDEZVOUS=HOST:PORT of rank 0 and "
               "HVD_SECRET_FILE";
    });
}

// One rank of a communicator without MPI: messages to all other ranks over connections of hvd's
// own, and shared memory for the ranks of each node. A library may carry the data.
template <class Messages>
class job_endpoint {
public:
    static owner<job_endpoint> world(const communicator_options& options) {
        const tcp_options place = place_from_environment();
        require_tcp_ranks(place);
        return world(place, options);
    }
    static owner<job_endpoint> world(const tcp_options& own, const communicator_options& options) {
        Messages::wire::prepare();  // what it needs outlives the job
        return world(tcp_job::of(own), options);
    }
    static owner<job_endpoint> world(const shared<tcp_job>& job,
                                     const communicator_options& options) {
        std::vector<int> all(std::size_t(job->size()));
        for (std::size_t r = 0; r < all.size(); ++r) all[r] = int(r);
        owner<job_endpoint> made(new job_endpoint(job, std::move(all), job->next_context(),
                                                  window_bytes_of(options),
                                                  limit_of(options.timeout)));
        made->connect();
        made->find_nodes(options);
        made->connect_library();
        made->make_area();
        return made;
    }

    job_endpoint(const job_endpoint&) = delete;
    job_endpoint& operator=(const job_endpoint&) = delete;

    ~job_endpoint() {
        if (getpid() == process_) job_->end(std::move(messages_));
    }

    // Ranks of another transport speak in the same way at first.
    static constexpr std::string_view transport_name() { return Messages::name; }
    int rank() const { return rank_; }
    int size() const { return int(ranks_.size()); }
    int node_of(int rank) const { return nodes_[std::size_t(rank)]; }
    bool threaded() const { return true; }
    std::uint64_t record_key() const noexcept { return context_; }
    const shm_region* region() const { return memory_.region(); }

    void send(int peer, const std::byte* data, std::size_t bytes) {
        messages_.send(peer, data, bytes);
    }
    void recv(int peer, std::byte* data, std::size_t bytes) {
        messages_.receive(peer, data, bytes);
    }
    // A message may fill a larger recv, which then says its size if the messages know it.
    static constexpr std::size_t fills_larger = SIZE_MAX;
    void recv(int peer, std::byte* data, std::size_t bytes, std::size_t& size) {
        messages_.receive(peer, data, bytes, &size);
    }
    bool poll() { return messages_.poll(); }
    bool pending(int peer) const { return messages_.pending(peer); }
    void cancel() noexcept { messages_.cancel(); }
    // Sleeps until there may be progress, or some time has passed.
    void sleep(std::int64_t nanoseconds) { messages_.sleep(nanoseconds); }

    std::uint64_t sends_begun(int peer) const { return messages_.sends_begun(peer); }
    std::uint64_t receives_begun(int peer) const { return messages_.receives_begun(peer); }
    bool send_notice(int peer, const failure_notice& notice) noexcept {
        return messages_.send_notice(peer, notice);
    }
    bool receive_notice(failure_notice& notice) { return messages_.receive_notice(notice); }
    std::vector<int> lost(message& why) { return messages_.lost(why); }

    // As in node_memory.
    const shared<segments>& arenas() const { return memory_.arenas(); }
    template <header_channel C>
    std::byte* share(C& channel, std::span<const std::size_t> bytes) {
        return memory_.share(channel, *this, bytes);
    }
    void unshare(std::byte* part) noexcept {
        if (getpid() == process_) memory_.unshare(part);
    }

    // A channel of protocol/agreement.hpp, before there is a session. The limit is that of the
    // making.
    [[gnu::cold]] table<call_header> exchange_headers(const call_header& mine, time_point) {
        table<call_header> all(ranks_.size());
        copy_header(all[std::size_t(rank_)], mine);
        for (int p = 0; p < size(); ++p) {
            call_header& theirs = all[std::size_t(p)];
            if (p == rank_) continue;
            messages_.receive(p, reinterpret_cast<std::byte*>(&theirs), sizeof theirs);
        }
        const std::byte* const shown = reinterpret_cast<const std::byte*>(&all[std::size_t(rank_)]);
        for (int p = 0; p < size(); ++p)
            if (p != rank_) messages_.send(p, shown, sizeof mine);
        await();
        replace_other_bytes(all);
        return all;
    }

    // Runs the last steps of the making of a communicator, which may fail on this rank alone.
    // Where they do, all ranks throw.
    template <class F>
    void settle(F f) {
        run_on_all(*this, making, never, f);
        give_up_when_ = nullptr;
    }

    // The endpoint of a subset of the ranks, for one of them. `join` makes the rest: it waits for
    // the other ranks of the subset, until one of them is gone, if `gone` tells that.
    [[gnu::cold]] owner<job_endpoint> prepare_subset(std::span<const int> ranks, int context,
                                                     time_point limit) const {
        std::vector<int> members;
        std::vector<int> nodes;
        for (const int r : ranks) {
            members.push_back(ranks_[std::size_t(r)]);
            nodes.push_back(node_of(r));
        }
        owner<job_endpoint> made(new job_endpoint(
            job_, std::move(members), hash().add(context_).add(std::uint64_t(context)).value(),
            window_, limit));
        made->nodes_ = std::move(nodes);
        made->memory_ = memory_.for_subset();
        return made;
    }
    template <class F>
    void give_up_when(const F& gone) {
        give_up_when_ = [](const void* f) { return (*static_cast<const F*>(f))(); };
        asked_ = &gone;
    }
    [[gnu::cold]] void join() {
        connect();
        connect_library();
        make_area();
    }
    owner<job_endpoint> subset(std::span<const int> ranks, int context) const {
        owner<job_endpoint> made = prepare_subset(ranks, context, never);
        made->join();
        return made;
    }

private:
    static constexpr const char* making = "making of a communicator";

    job_endpoint(shared<tcp_job> job, std::vector<int> ranks, std::uint64_t context,
                 std::size_t window, time_point limit)
        : job_(std::move(job)),
          ranks_(std::move(ranks)),
          context_(context),
          window_(window),
          limit_(limit) {
        while (ranks_[std::size_t(rank_)] != job_->rank()) ++rank_;
    }

    bool gone() const {
        return give_up_when_ != nullptr ? give_up_when_(asked_) : job_->is_given_up();
    }

    void connect() {
        using wire = typename Messages::wire;
        std::vector<wire> wires(ranks_.size());
        if (size() > 1) {
            job_connections& own = job_->connections();
            // The ranks of a subset are told by those of its parent.
            const bool tells_peers = give_up_when_ == nullptr;
            auto sockets = own.connect(
                context_, ranks_, limit_, tells_peers, [this] { return gone(); },
                [this] { return job_->gives_back(); });
            for (std::size_t p = 0; p < sockets.size(); ++p)
                if (sockets[p])
                    wires[p] = wire::over(std::move(sockets[p]), own.connects_to(ranks_[p]),
                                          [&] { return own.secret_with(ranks_[p], context_); });
        }
        messages_ = Messages(std::move(wires));
    }

    // A library has connections of its own. The ranks tell each other where it listens.
    [[gnu::cold]] void connect_library() {
        if constexpr (requires { typename Messages::library; }) {
            using library = typename Messages::library;
            if (!Messages::needs_library(nodes_)) return;
            shared<library> made;
            run_on_all(*this, making, never, [&] {
                made = shared<library>::make(rank_, size(), messages_.own_address());
            });
            const auto all = exchange(made->places());
            messages_.use(std::move(made));
            messages_.connect_library(all);
            await();
        }
    }

    // Sends each rank the element with its number, and returns those that come from them.
    template <class T>
    [[gnu::cold]] std::vector<T> exchange(const std::vector<T>& mine) {
        std::vector<T> theirs(mine.size());
        for (int p = 0; p < size(); ++p)
            if (p != rank_) messages_.receive(p, as_bytes(theirs[std::size_t(p)]), sizeof(T));
        for (int p = 0; p < size(); ++p)
            if (p != rank_) messages_.send(p, as_bytes(mine[std::size_t(p)]), sizeof(T));
        await();
        return theirs;
    }
    template <class T>
    static auto as_bytes(T& data) {
        using byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
        return reinterpret_cast<byte*>(&data);
    }

    // Waits for the messages under way.
    [[gnu::cold]] void await() {
        try {
            await_messages();
        } catch (...) {
            messages_.cancel();
            throw;
        }
    }
    void await_messages() {
        backoff pauses(false);
        const auto sleep = [this](std::int64_t nanoseconds) {
            messages_.sleep(nanoseconds);
            return sleep_end::over;
        };
        while (!messages_.poll()) {
            if (!pauses.pause(sleep)) continue;
            for (failure_notice notice; messages_.receive_notice(notice);)
                if (notice.what == word::failed || notice.what == word::died) pass_on(notice);
            message why;
            std::vector<int> lost = messages_.lost(why);
            if (lost.empty() && now() <= limit_ && !gone()) continue;
            const bool timed_out = lost.empty() && now() > limit_;
            if (lost.empty()) lost = late(why);
            throw_peer_error(timed_out, rank_, text("hvd: ", making, " on rank ", rank_, ": ", why),
                             std::move(lost));
        }
    }
    // Others may wait for connections yet, and this rank ends theirs.
    [[noreturn]] void pass_on(failure_notice notice) {
        notice.sender = rank_;
        messages_.cancel();
        for (int p = 0; p < size(); ++p)
            if (p != rank_) messages_.send_notice(p, notice);
        throw_peer_error(notice.expired != 0, rank_,
                         text("hvd: ", making, " on rank ", rank_, ": ", notice.text),
                         ranks_of(notice));
    }
    std::vector<int> late(message& why) const {
        std::vector<int> ranks;
        for (int p = 0; p < size(); ++p) {
            if (p == rank_ || !pending(p)) continue;
            why += text(ranks.empty() ? "rank " : ", rank ", p);
            ranks.push_back(p);
        }
        why += text(ranks.empty() ? "other ranks" : "", " did not come in time");
        return ranks;
    }

    // Ranks share a node if they say that they are on one host, unless nodes are declared. A node
    // is named by its first rank.
    [[gnu::cold]] void find_nodes(const communicator_options& options) {
        const bool declared = agreed_node_size(*this, making, options) > 0;
        run_on_all(*this, making, never, [&] {
            nodes_ = nodes_of_one_host(size(), options);
            for (int r = 0; !declared && r < size(); ++r) {
                int first = 0;
                while (job_->host_of(first) != job_->host_of(r)) ++first;
                nodes_[std::size_t(r)] = first;
            }
        });
    }

    // Ranks that are all alone on their nodes need no memory.
    [[gnu::cold]] void make_area() {
        node_memory::position here;
        run_on_all(*this, making, never, [&] { here = node_memory::position(*this); });
        if (here.nodes > 1 && here.nodes == size()) return;
        memory_.make(*this, here, window_);
    }

    shared<tcp_job> job_;
    std::vector<int> ranks_;  // of the job, by rank of this communicator
    int rank_ = 0;
    std::uint64_t context_;
    std::size_t window_;
    time_point limit_;  // of the making
    bool (*give_up_when_)(const void*) = nullptr;
    const void* asked_ = nullptr;
    std::vector<int> nodes_;
    Messages messages_;
    node_memory memory_;
    pid_t process_ = getpid();  // a forked child does not use the connections
};

using tcp_endpoint = job_endpoint<tcp_messages>;

}  // namespace detail

/// Ranks are processes that a launcher has started, without MPI. hvd moves the data: through shared
/// memory inside a host, and over TCP between hosts. Reductions are in rank order, and over several
/// hosts in the order of the hosts: the bits are those of `mpi`.
///
/// The launcher (`hvdrun`) sets HVD_RANK, HVD_SIZE, HVD_RENDEZVOUS and HVD_SECRET_FILE, or the
/// program gives `tcp_options`. The rank and the size may be those of mpirun, mpiexec or srun. A
/// process without them is a job of one rank. Where mpirun, mpiexec or srun says that there are
/// more, and they have no place to meet, the world is refused unless HVD_ALONE=1. Connections are
/// authenticated with the job's secret, and not encrypted: see `encrypted`. A process that dies is
/// noticed at once, and a host that falls silent in two seconds, while somebody waits for it.
/// @snippet tests/docs/snippets.cpp tcp
struct tcp {
    using endpoint_type = detail::tcp_endpoint;
};

static_assert(backend<tcp>);

}  // namespace hvd::inline v0
