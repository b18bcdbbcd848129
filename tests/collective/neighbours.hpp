// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The backend of queues.hpp with nodes. Ranks of one node share memory, and send letters to the
// others.

#include "queues.hpp"

namespace hvd_test {

// The placement of ranks: the node of each.
using placement = int (*)(int rank);

class neighbour_endpoint : public queue_endpoint {
public:
    neighbour_endpoint(std::shared_ptr<post_office> office, int rank, std::vector<int> nodes,
                       std::size_t window)
        : queue_endpoint(std::move(office), rank), nodes_(std::move(nodes)) {
        using namespace hvd::detail;
        const int node = node_of(rank);
        const int neighbours = int(std::count(nodes_.begin(), nodes_.end(), node));
        window = shm_region::window_for(neighbours, window);
        const std::lock_guard lock(office_->mutex);
        auto& memory = office_->memory[node];
        const bool first = memory == nullptr;
        if (first)
            memory = std::make_shared<shared_memory>(
                shared_memory::of_this_process(shm_region::bytes(neighbours, window)));
        memory_ = std::static_pointer_cast<shared_memory>(memory);
        region_ = shm_region(memory_->data(), neighbours, window, segments::of_this_process());
        if (first) region_.construct();
    }

    int node_of(int rank) const { return nodes_[std::size_t(rank)]; }
    const hvd::detail::shm_region* region() const { return &region_; }

    std::unique_ptr<neighbour_endpoint> subset(std::span<const int> ranks, int context) {
        std::vector<int> nodes;
        for (const int rank : ranks) nodes.push_back(node_of(rank));
        auto [office, me] = child(ranks, context);
        return std::make_unique<neighbour_endpoint>(std::move(office), me, std::move(nodes),
                                                    region_.window_bytes());
    }

private:
    std::vector<int> nodes_;
    std::shared_ptr<hvd::detail::shared_memory> memory_;
    hvd::detail::shm_region region_{nullptr, 0, 0, {}};
};

struct neighbours {
    using endpoint_type = neighbour_endpoint;
};
static_assert(hvd::backend<neighbours>);
static_assert(hvd::splittable_endpoint<neighbour_endpoint>);

// Runs f(comm) on `ranks` threads with this placement.
template <class F>
void run_neighbours(int ranks, placement place, F f,
                    const hvd::communicator_options& options = {}) {
    std::vector<int> nodes;
    for (int rank = 0; rank < ranks; ++rank) nodes.push_back(place(rank));
    run_in_office(ranks, [&](std::shared_ptr<post_office> office, int rank) {
        hvd::communicator<neighbours> comm(
            std::make_unique<neighbour_endpoint>(std::move(office), rank, nodes,
                                                 hvd::detail::window_bytes_of(options)),
            options);
        f(comm);
    });
}

// Nodes of two and of three ranks, the last of which may be smaller. The third placement deals the
// ranks out to two nodes.
inline constexpr placement placements[] = {[](int rank) { return rank / 2; },
                                           [](int rank) { return rank / 3; },
                                           [](int rank) { return rank % 2; }};

}  // namespace hvd_test
