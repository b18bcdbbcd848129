// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <vector>

#include "../core/lean/handles.hpp"
#include "../core/options.hpp"
#include "../platform/thread.hpp"
#include "../transport/shm/shm_region.hpp"
#include "concept.hpp"
#include "node_size.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What the ranks of one communicator on threads have in common.
class threads_hub : public counted {
public:
    // `nodes` has a number for each rank, equal for ranks that are taken as sharing a node.
    // `where` they may all run: of one of them that is not pinned yet. @throws std::bad_alloc
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

    // The hub of a subset: made by whoever comes first, forgotten here when all have come.
    shared<threads_hub> child(int context, std::span<const int> members) {
        const lock_guard lock(mutex_);
        std::size_t i = 0;
        while (i < children_.size() &&
               (children_[i].context != context || children_[i].first != members.front()))
            ++i;
        if (i == children_.size()) {
            std::vector<int> nodes;
            for (const int rank : members) nodes.push_back(node_of(rank));
            children_.push_back({context, members.front(), int(members.size()),
                                 shared<threads_hub>::make(std::move(nodes), region_.window_bytes(),
                                                           region_.slot(0).processors)});
        }
        const shared<threads_hub> hub = children_[i].hub;
        if (--children_[i].missing == 0) children_.erase(children_.begin() + std::ptrdiff_t(i));
        return hub;
    }

private:
    struct child_hub {
        int context;
        int first;
        int missing;
        shared<threads_hub> hub;
    };

    int ranks() const { return int(nodes_.size()); }

    std::vector<int> nodes_;
    shared_memory memory_;
    shm_region region_;
    mutex mutex_;
    std::vector<child_hub> children_;  // that some member has yet to come for
};

class threads_endpoint {
public:
    threads_endpoint(shared<threads_hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

    // Alone: a communicator that needs nobody.
    static owner<threads_endpoint> world(const communicator_options& options) {
        return owner<threads_endpoint>::make(
            shared<threads_hub>::make(std::vector<int>(1),
                                      shm_region::window_for(1, options.window_bytes),
                                      processor_set::of_this_thread()),
            0);
    }

    int rank() const { return rank_; }
    int size() const { return hub_->region().ranks(); }
    const shm_region* region() const { return &hub_->region(); }
    int node_of(int rank) const { return hub_->node_of(rank); }
    bool threaded() const { return true; }

    // Memory for this rank, null if the system refuses it; the others reach it as they reach all
    // there is.
    std::byte* share(std::span<const std::size_t> bytes) {
        own_.push_back(shared_memory::of_this_process(bytes[std::size_t(rank_)]));
        return static_cast<std::byte*>(own_.back().data());
    }

    owner<threads_endpoint> subset(std::span<const int> ranks, int context) const {
        int me = 0;
        while (ranks[std::size_t(me)] != rank_) ++me;
        return owner<threads_endpoint>::make(hub_->child(context, ranks), me);
    }

private:
    shared<threads_hub> hub_;
    int rank_;
    std::vector<shared_memory> own_;
};

}  // namespace detail

/// Ranks are threads of one process: needs no MPI, no launcher and no network.
///
/// `run_threads` starts them. Tensors of 4 KiB and more are read where they lie; reductions are in
/// rank order, on several (declared) nodes in the order of the nodes.
struct threads {
    using endpoint_type = detail::threads_endpoint;
};

static_assert(backend<threads>);

}  // namespace v0
}  // namespace hvd
