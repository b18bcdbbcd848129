// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "hvd_test.hpp"

#if defined(HVD_TEST_NEIGHBOURS)
#include "neighbours.hpp"
#elif defined(HVD_TEST_QUEUES)
#include "queues.hpp"
#endif

namespace hvd_test {

// Runs f(comm) on every transport of this build's backend. On MPI these are shared memory, messages
// between all ranks (each its own node), and nodes of two ranks.
template <class F>
void on_every_transport(F f, hvd::communicator_options options = {}) {
#if defined(HVD_TEST_NEIGHBOURS)
    for (const int ranks : thread_counts())
        for (const placement& place : placements) {
            INFO("on ", ranks, " queues in placement ", &place - placements);
            run_neighbours(
                ranks, place,
                [&f](auto& comm) {
                    INFO("rank ", comm.rank(), " of ", comm.size());
                    f(comm);
                },
                options);
        }
#elif defined(HVD_TEST_QUEUES)
    for (const int ranks : thread_counts()) {
        INFO("on ", ranks, " queues");
        run_queues(
            ranks,
            [&f](auto& comm) {
                INFO("rank ", comm.rank(), " of ", comm.size());
                f(comm);
            },
            options);
    }
#elif defined(HVD_TEST_LAUNCHED)
    const failing_rank_does_not_hang guard;
    for (const int node_size : {0, 1, 2}) {
        if (node_size >= launched_ranks() && node_size > 1) continue;
        INFO("with nodes of ", node_size, " ranks (0: as they are)");
        options.node_size = node_size;
        auto all = world(options);
        f(all);
    }
#else
    for (const int ranks : thread_counts()) {
        INFO("on ", ranks, " threads");
        hvd_test::run_threads(
            ranks,
            [&f](communicator& comm) {
                INFO("rank ", comm.rank(), " of ", comm.size());
                f(comm);
            },
            options);
    }
#endif
}

// For tests that need at least `least` ranks to be meaningful.
template <class F>
void on_every_transport_from(int least, F f, const hvd::communicator_options& options = {}) {
    on_every_transport(
        [&](auto& comm) {
            if (comm.size() >= least) f(comm);
        },
        options);
}

template <class Comm>
std::size_t size_of(const Comm& comm) {
    return std::size_t(comm.size());
}

template <class Comm>
std::size_t rank_of(const Comm& comm) {
    return std::size_t(comm.rank());
}

// Returns the ranks of each node, in the order of their first ranks. A local communicator names
// them.
template <class Comm>
std::vector<std::vector<int>> nodes_of(Comm& comm) {
    auto local = comm.local();
    const auto first = local.allgather(comm.rank()).values.front();
    const auto firsts = comm.allgather(first).values;
    std::vector<std::vector<int>> nodes;
    for (int head = 0; head < comm.size(); ++head) {
        std::vector<int> ranks;
        for (int rank = 0; rank < comm.size(); ++rank)
            if (firsts[std::size_t(rank)] == head) ranks.push_back(rank);
        if (!ranks.empty()) nodes.push_back(ranks);
    }
    return nodes;
}

inline std::string text_of_what_is_caught() {
    try {
        throw;
    } catch (const std::exception& e) {
        return e.what();
    } catch (...) {
        return "no std::exception";
    }
}

// Returns the E that f throws. Anything else is a failed check.
template <class E, class F>
std::optional<E> thrown(F f) {
    try {
        f();
    } catch (const E& e) {
        return e;
    } catch (...) {
        FAIL_CHECK("threw something else: ", text_of_what_is_caught());
        return {};
    }
    FAIL_CHECK("threw nothing");
    return {};
}

inline bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// Checks after an error that the ranks are still in step, and that data arrives.
template <class Comm>
void check_that_it_works(Comm& comm) {
    std::vector<int> sum(5, comm.rank() + 1), all(size_of(comm));
    comm.allreduce(sum, hvd::sum);
    CHECK(sum == std::vector<int>(5, comm.size() * (comm.size() + 1) / 2));
    const int mine = 10 * comm.rank();
    comm.allgather(mine, hvd::into(all));
    CHECK(all.back() == 10 * (comm.size() - 1));
}

}  // namespace hvd_test
