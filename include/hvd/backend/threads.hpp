// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "../core/options.hpp"
#include "concept.hpp"
#include "node_area.hpp"
#include "nodes.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What the ranks of one communicator on threads have in common.
class threads_hub {
public:
    // `nodes` has a number for each rank, equal for ranks that are taken as sharing a node.
    explicit threads_hub(std::vector<int> nodes)
        : nodes_(std::move(nodes)), slots_(std::make_unique<node_slot[]>(nodes_.size())),
          area_(slots_.get(), int(nodes_.size()), 0) {}

    const node_area& area() const { return area_; }
    int node_of(int rank) const { return nodes_[std::size_t(rank)]; }

    // The hub of a subset: made by whoever comes first, forgotten here when all have come.
    std::shared_ptr<threads_hub> child(int context, std::span<const int> members) {
        const std::pair key(context, members.front());
        const std::lock_guard lock(mutex_);
        entry& e = children_[key];
        if (e.hub == nullptr) {
            std::vector<int> nodes;
            for (const int rank : members) nodes.push_back(node_of(rank));
            e = {std::make_shared<threads_hub>(std::move(nodes)), int(members.size())};
        }
        const std::shared_ptr<threads_hub> hub = e.hub;
        if (--e.missing == 0) children_.erase(key);
        return hub;
    }

private:
    struct entry {
        std::shared_ptr<threads_hub> hub;
        int missing = 0;
    };

    std::vector<int> nodes_;
    std::unique_ptr<node_slot[]> slots_;
    node_area area_;
    std::mutex mutex_;
    std::map<std::pair<int, int>, entry> children_;
};

class threads_link {
public:
    static constexpr bool always_shares_node = true;

    threads_link(std::shared_ptr<threads_hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

    // Alone: a communicator that needs nobody.
    static std::unique_ptr<threads_link> world(const communicator_options&) {
        return std::make_unique<threads_link>(std::make_shared<threads_hub>(std::vector<int>(1)), 0);
    }

    int rank() const { return rank_; }
    int size() const { return hub_->area().ranks(); }
    const node_area* area() const { return &hub_->area(); }
    int node_of(int rank) const { return hub_->node_of(rank); }
    bool threaded() const { return true; }

    std::unique_ptr<threads_link> subset(std::span<const int> ranks, int context) const {
        const auto me = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
        return std::make_unique<threads_link>(hub_->child(context, ranks), int(me));
    }

private:
    std::shared_ptr<threads_hub> hub_;
    int rank_;
};

}  // namespace detail

/// Ranks are threads of one process: needs no MPI, no launcher and no network.
///
/// `run_threads` starts them. Tensors are read where they lie; reductions are in rank order.
struct threads {
    using link_type = detail::threads_link;
};

static_assert(backend<threads>);

}  // namespace v0
}  // namespace hvd
