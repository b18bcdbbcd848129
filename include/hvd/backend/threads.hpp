// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <vector>

#include "../core/lean/handles.hpp"
#include "../core/options.hpp"
#include "../core/settings/launched_ranks.hpp"
#include "../platform/thread.hpp"
#include "../transport/shm/shm_region.hpp"
#include "concept.hpp"
#include "node_size.hpp"

namespace hvd::inline v0 {
namespace detail {

// The hubs that some member has not taken yet. The first member to come makes a hub, and the last
// to come removes it from the list.
template <class Hub>
class open_hubs {
public:
    struct awaited_hub {
        int context;  // the number of the call that makes the communicator
        int first;    // its first member; the two tell the hubs apart
        std::size_t missing;
        shared<Hub> hub;
    };

    template <class Make>
    awaited_hub& at(int context, int first, std::size_t members, Make make) {
        for (awaited_hub& awaited : list_)
            if (awaited.context == context && awaited.first == first) return awaited;
        list_.push_back({context, first, members, make()});
        return list_.back();
    }

    // Takes the hub for one member. `awaited` is in this list.
    shared<Hub> take(awaited_hub& awaited) {
        const shared<Hub> hub = awaited.hub;
        if (--awaited.missing == 0) list_.erase(list_.begin() + (&awaited - list_.data()));
        return hub;
    }

    // Removes the hubs that a call would have made: no member takes them any more.
    void forget(int context) noexcept {
        std::size_t kept = 0;
        for (awaited_hub& awaited : list_)
            if (awaited.context != context) std::swap(list_[kept++], awaited);
        while (list_.size() > kept) list_.pop_back();
    }

    auto begin() const { return list_.begin(); }
    auto end() const { return list_.end(); }

private:
    std::vector<awaited_hub> list_;
};

// The data that the ranks of one communicator on threads share.
class threads_hub : public counted {
public:
    // `nodes` has a number for each rank; ranks of one node have equal numbers. The ranks may run
    // on the processors `where`. @throws std::bad_alloc
    threads_hub(std::vector<int> nodes, std::size_t window, const processor_set& where)
        : nodes_(std::move(nodes)),
          memory_(shared_memory::of_this_process(shm_region::bytes(ranks(), window))),
          region_(memory_.data(), ranks(), window, segments::of_this_process()) {
        if (!memory_) throw std::bad_alloc();
        region_.construct();
        region_.slot(0).processors = where;
    }

    const shm_region& region() const { return region_; }
    int node_of(int rank) const { return nodes_[std::size_t(rank)]; }

    // Returns the hub of some of the ranks, for one of them.
    shared<threads_hub> child(int context, std::span<const int> members) {
        const lock_guard lock(mutex_);
        auto& awaited = children_.at(context, members.front(), members.size(), [&] {
            std::vector<int> nodes;
            for (const int rank : members) nodes.push_back(node_of(rank));
            return shared<threads_hub>::make(std::move(nodes), region_.window_bytes(),
                                             region_.slot(0).processors);
        });
        return children_.take(awaited);
    }
    void forget_children(int context) noexcept {
        const lock_guard lock(mutex_);
        children_.forget(context);
    }

private:
    int ranks() const { return int(nodes_.size()); }

    std::vector<int> nodes_;
    shared_memory memory_;
    shm_region region_;
    mutex mutex_;
    open_hubs<threads_hub> children_;
};

// True on a thread that run_threads has made a rank.
inline bool& is_rank_of_run_threads() {
    static thread_local bool is_rank = false;
    return is_rank;
}

class threads_endpoint {
public:
    threads_endpoint(shared<threads_hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

    // Makes a world of one rank. Inside run_threads it would work alone in silence.
    static owner<threads_endpoint> world(const communicator_options& options) {
        if (is_rank_of_run_threads()) throw_alone();
        refuse_to_be_alone("threads", true, [](const launched_ranks&) {
            return "processes are ranks of hvd::tcp: include hvd/tcp.hpp, and write "
                   "hvd::communicator<hvd::tcp>::world() or hvd::init<hvd::tcp>()";
        });
        return self(options);
    }
    static owner<threads_endpoint> self(const communicator_options& options) {
        return owner<threads_endpoint>::make(
            shared<threads_hub>::make(std::vector<int>(1),
                                      shm_region::window_for(1, window_bytes_of(options)),
                                      processor_set::of_this_thread()),
            0);
    }

    int rank() const { return rank_; }
    int size() const { return hub_->region().ranks(); }
    const shm_region* region() const { return &hub_->region(); }
    int node_of(int rank) const { return hub_->node_of(rank); }
    bool threaded() const { return true; }
    std::uint64_t record_key() const noexcept {
        return reinterpret_cast<std::uintptr_t>(hub_.get());
    }

    // Allocates memory for this rank; null if the system refuses. The other ranks reach it, as
    // they reach all memory of the process.
    template <class Channel>
    std::byte* share(Channel&, std::span<const std::size_t> bytes) {
        own_.push_back(shared_memory::of_this_process(bytes[std::size_t(rank_)]));
        return static_cast<std::byte*>(own_.back().data());
    }

    // Takes back what share() gave.
    void unshare(std::byte* part) noexcept {
        for (std::size_t i = 0; i < own_.size(); ++i)
            if (own_[i].data() == part) {
                own_.erase(own_.begin() + std::ptrdiff_t(i));
                return;
            }
    }

    owner<threads_endpoint> subset(std::span<const int> ranks, int context) const {
        int me = 0;
        while (ranks[std::size_t(me)] != rank_) ++me;
        return owner<threads_endpoint>::make(hub_->child(context, ranks), me);
    }
    // A subset was not made on all ranks.
    void forget_subset(int context) noexcept { hub_->forget_children(context); }

private:
    [[noreturn, gnu::cold]] static void throw_alone() {
        throw usage_error(-1,
                          "hvd: communicator<threads>::world() inside run_threads is a world of "
                          "one rank: take the communicator that run_threads hands over, or self() "
                          "for a world of this thread alone");
    }

    shared<threads_hub> hub_;
    int rank_;
    std::vector<shared_memory> own_;
};

}  // namespace detail

/// Ranks are threads of one process. The backend needs no MPI, no launcher and no network.
///
/// `run_threads` starts the threads; `thread_group` takes those that a program has. Tensors of
/// 4 KiB and more are read where they lie. Reductions are in rank order, on several (declared)
/// nodes in the order of the nodes.
struct threads {
    using endpoint_type = detail::threads_endpoint;
};

static_assert(backend<threads>);

}  // namespace hvd::inline v0
