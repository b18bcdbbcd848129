// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support.hpp"

namespace waiting_tests {

// Ranks that wait long say for whom. The last rank comes when all others have said so, and stays
// away a little longer: a second line of a rank would come then. A busy machine keeps no thread
// from running so long that the others would name it, too.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

constexpr auto patience = 1s;
constexpr int few = 3;  // ranks, since all of them wait

std::mutex mutex;
std::vector<std::string> lines;

#if defined(HVD_TEST_BACKEND_MPI)
void tell_late_rank() {
    const int last = launched_ranks() - 1;
    MPI_Send(nullptr, 0, MPI_BYTE, last, 0, MPI_COMM_WORLD);
}
void await_lines(int others) {
    for (int i = 0; i < others; ++i)
        MPI_Recv(nullptr, 0, MPI_BYTE, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
#else
std::atomic<int> told{0};
void tell_late_rank() { ++told; }
void await_lines(int others) {
    while (told < others) std::this_thread::sleep_for(1ms);
    told = 0;
}
#endif

// Other calls of a test may wait, too.
void collect(std::string_view line) {
    if (line.find("'late") == line.npos) return;
    {
        const std::lock_guard lock(mutex);
        lines.emplace_back(line);
    }
    tell_late_rank();
}

struct collects_lines {
    hvd::message_sink before = hvd::set_message_sink(&collect);
    ~collects_lines() {
        hvd::set_message_sink(before);
        lines.clear();
#if !defined(HVD_TEST_BACKEND_MPI)
        told = 0;
#endif
    }
};

std::size_t lines_that_begin(const std::string& beginning) {
    const std::lock_guard lock(mutex);
    return std::size_t(std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
        return line.starts_with(beginning);
    }));
}

// Each rank but the last says once that it waits in `label`, and for whom.
template <class Comm>
void check_lines(const Comm& comm, const std::string& label) {
    const int last = comm.size() - 1;
    const std::string beginning =
        "hvd: rank " + std::to_string(comm.rank()) + " has waited 1 s in " + label + " for rank";
    CHECK(lines_that_begin(beginning) == std::size_t(comm.rank() != last));
    // Where there are nodes, a rank may wait for one of another node that waits for the last.
    const bool by_nodes = comm.local_size() > 1 && comm.cross_size() > 1;
    if (comm.rank() != last && !by_nodes)
        CHECK(lines_that_begin(beginning + " " + std::to_string(last)) == 1);
    CHECK(lines_that_begin("hvd: rank " + std::to_string(last) + " has waited 1 s in " + label) ==
          0);
}

template <class Comm, class F>
void with_late_rank(Comm& comm, const std::string& label, F call) {
    comm.barrier();
    if (comm.rank() == comm.size() - 1) {
        await_lines(comm.size() - 1);
        std::this_thread::sleep_for(2 * patience);
    }
    call();
    comm.barrier();
    check_lines(comm, label);
}

}  // namespace

TEST_CASE("ranks that wait for a late rank say so once in each call") {
    const collects_lines guard;
    on_every_transport_from(
        2,
        [](auto& comm) {
            if (comm.size() > few) return;
            std::vector<float> x(5000, 1);
            auto plan = comm.plan_allreduce(hvd::fuse(x), hvd::sum, {.name = "late-plan"});
            with_late_rank(comm, "allreduce 'late'",
                           [&] { comm.allreduce(x, hvd::sum, {.name = "late"}); });
            with_late_rank(comm, "broadcast 'late-async'", [&] {
                comm.broadcast_async(x, hvd::root{0}, {.name = "late-async"}).wait();
            });
            with_late_rank(comm, "allreduce 'late-plan'", [&] { plan.run(); });
            with_late_rank(comm, "barrier 'late-dropped'", [&] {
                const auto dropped = comm.barrier_async({.name = "late-dropped"});
            });
            comm.barrier();  // all have looked
            const std::lock_guard lock(mutex);
            lines.clear();
        },
        {.destructor_timeout = 60s, .waiting_notice = patience});
}

TEST_CASE("ranks say nothing where they are told not to, before a timeout, and in time") {
    const collects_lines guard;
    const auto stay_away = [](auto& comm) {
        if (comm.rank() == comm.size() - 1) std::this_thread::sleep_for(2 * patience);
    };
    on_every_transport_from(2,
                            [&](auto& comm) {
                                if (comm.size() > few) return;
                                stay_away(comm);
                                comm.barrier({.name = "late-never"});
                                CHECK(lines_that_begin("hvd") == 0);
                            },
                            {.waiting_notice = hvd::forever});
    on_every_transport_from(2,
                            [&](auto& comm) {
                                if (comm.size() > few) return;
                                stay_away(comm);
                                comm.barrier({.name = "late-in-time", .timeout = 60s});
                                CHECK(lines_that_begin("hvd") == 0);
                            },
                            {.waiting_notice = patience});
    on_every_transport_from(2,
                            [&](auto& comm) {
                                for (int i = 0; i < 100; ++i) comm.barrier({.name = "late-not"});
                                CHECK(lines_that_begin("hvd") == 0);
                            },
                            {.waiting_notice = 60s});
}

#if !defined(HVD_TEST_BACKEND_MPI)

TEST_CASE("a thread that never came to its group is named, and the ranks of a subset by its own") {
    const collects_lines guard;
    for (const int ranks : {2, 3, 4}) {
        hvd::thread_group group{ranks, {.waiting_notice = patience}};
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks - 1; ++rank)
            threads.emplace_back([&group, rank] {
                auto comm = group.communicator(rank);
                comm.barrier({.name = "late"});
            });
        await_lines(ranks - 1);
        auto last = group.communicator(ranks - 1);
        last.barrier({.name = "late"});
        for (std::thread& thread : threads) thread.join();
        CHECK(lines_that_begin("hvd: rank 0 has waited 1 s in barrier 'late' for rank " +
                               std::to_string(ranks - 1)) == 1);
        lines.clear();
    }
    hvd::run_threads(4,
                     [](auto& comm) {
                         auto odd = comm.subset({1, 3});
                         if (!odd) return;
                         if (odd.rank() == 1) await_lines(1);
                         odd.barrier({.name = "late"});
                     },
                     {.waiting_notice = patience});
    CHECK(lines_that_begin("hvd: rank 0 has waited 1 s in barrier 'late' for rank 1") == 1);
}

TEST_CASE("several missing ranks are named in one line") {
    const collects_lines guard;
    hvd::run_threads(4,
                     [](auto& comm) {
                         while (comm.rank() != 1 && told == 0) std::this_thread::sleep_for(1ms);
                         comm.barrier({.name = "late"});
                     },
                     {.waiting_notice = patience});
    CHECK(lines_that_begin("hvd: rank 1 has waited 1 s in barrier 'late' for ranks 0, 2, 3") == 1);
}

#endif

}  // namespace waiting_tests
