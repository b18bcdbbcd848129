// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hvd_test.hpp"

namespace thread_group_tests {

// Threads that a program started itself are ranks.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

// Runs f(rank) on a thread for each rank.
void on_own_threads(int ranks, const std::function<void(int)>& f) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(f, rank);
    for (std::thread& thread : threads) thread.join();
}

template <class Comm>
void check_sum(Comm& comm) {
    std::vector<float> x(5000, float(comm.rank() + 1)), y = x;
    comm.allreduce(x, hvd::sum);
    comm.allreduce_async(y, hvd::sum).wait();
    const std::vector<float> sum(x.size(), float(comm.size() * (comm.size() + 1) / 2));
    CHECK(x == sum);
    CHECK(y == sum);
}

// Returns the text of the peer_error that a barrier throws, which names `peer`. It is empty if none
// is thrown.
bool contains(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
}

std::string failed_barrier(communicator& comm, int peer) {
    try {
        comm.barrier();
    } catch (const hvd::peer_error& e) {
        CHECK(e.peers() == std::vector<int>{peer});
        CHECK((dynamic_cast<const hvd::timeout_error*>(&e) != nullptr) ==
              contains(e.what(), "did not come in time"));
        return e.what();
    }
    return {};
}

}  // namespace

TEST_CASE("threads of a program are the ranks of a communicator") {
    for (const int ranks : thread_counts()) {
        hvd::thread_group group{ranks};
        CHECK(group.size() == ranks);
        on_own_threads(ranks, [&](int rank) {
            auto comm = group.communicator(rank);
            CHECK(comm.rank() == rank);
            CHECK(comm.size() == ranks);
            check_sum(comm);
            auto half = comm.split(rank % 2);
            check_sum(half);
        });
    }
}

TEST_CASE("one thread makes all communicators and moves them to the threads") {
    for (const int ranks : thread_counts()) {
        hvd::thread_group group{ranks};
        std::vector<communicator> made;
        for (int rank = 0; rank < ranks; ++rank) made.push_back(group.communicator(rank));
        on_own_threads(ranks, [&](int rank) {
            communicator mine = std::move(made[std::size_t(rank)]);
            check_sum(mine);
        });
    }
}

TEST_CASE("a rank that never comes is named at the timeout") {
    for (const int ranks : {2, 3, 4}) {
        std::atomic<int> named{0};
        hvd::thread_group group{ranks, {.timeout = 100ms}};
        on_own_threads(ranks - 1, [&](int rank) {
            auto comm = group.communicator(rank);
            named += contains(failed_barrier(comm, ranks - 1), "did not come in time");
        });
        CHECK(named == ranks - 1);
    }
}

TEST_CASE("a number that is no rank is refused, and so is a rank that has a communicator") {
    hvd::thread_group group{3};
    CHECK_THROWS_WITH_AS(group.communicator(3),
                         "hvd: thread_group::communicator: 3 is not a rank of this group of size 3",
                         hvd::usage_error);
    CHECK_THROWS_AS(group.communicator(-1), hvd::usage_error);
    CHECK_THROWS_AS(group.leave(3, "no rank"), hvd::usage_error);
    on_own_threads(3, [&](int rank) {
        auto comm = group.communicator(rank);
        CHECK_THROWS_AS(group.communicator(rank), hvd::usage_error);
        check_sum(comm);
        auto moved = std::move(comm);
        CHECK_THROWS_AS(group.communicator(rank), hvd::usage_error);
        check_sum(moved);
    });
    CHECK_THROWS_AS(hvd::thread_group{0}, hvd::usage_error);
    CHECK_THROWS_AS(hvd::thread_group{-2}, hvd::usage_error);
}

TEST_CASE("ranks whose communicators have ended get others, which belong together in their order") {
    for (const int ranks : thread_counts()) {
        hvd::thread_group group{ranks};
        on_own_threads(ranks, [&](int rank) {
            for (int time = 0; time < 20; ++time) {
                auto comm = group.communicator(rank);
                int sum = time;
                comm.allreduce(sum, hvd::sum);
                CHECK(sum == ranks * time);
            }
        });
    }
}

TEST_CASE("ranks get new communicators after an error that ended the old ones") {
    for (const int ranks : {2, 3, 4}) {
        hvd::thread_group group{ranks};
        on_own_threads(ranks, [&](int rank) {
            try {
                auto comm = group.communicator(rank);
                check_sum(comm);
                if (rank == 1) throw std::runtime_error("no batch");
                comm.barrier();
                FAIL_CHECK("a barrier without rank 1");
            } catch (const hvd::peer_error& e) {
                CHECK(contains(e.what(), "an exception unwound"));
            } catch (const std::runtime_error&) {
                CHECK(rank == 1);
            }
            auto again = group.communicator(rank);
            check_sum(again);
        });
    }
}

TEST_CASE("communicators live on after their group") {
    for (const int ranks : {1, 2, 3, 4}) {
        std::vector<communicator> made;
        {
            hvd::thread_group group{ranks};
            for (int rank = 0; rank < ranks; ++rank) made.push_back(group.communicator(rank));
        }
        on_own_threads(ranks, [&](int rank) {
            communicator mine = std::move(made[std::size_t(rank)]);
            check_sum(mine);
            auto half = mine.split(rank % 2);
            check_sum(half);
        });
    }
}

TEST_CASE("a group that is destroyed before a rank came tells the others") {
    for (const int ranks : {2, 3, 4}) {
        std::optional<hvd::thread_group> group{std::in_place, ranks};
        std::atomic<int> came{0}, told{0};
        std::thread destroyer([&] {
            while (came < ranks - 1) std::this_thread::yield();
            group.reset();
        });
        on_own_threads(ranks - 1, [&](int rank) {
            auto comm = group->communicator(rank);
            ++came;
            told += contains(failed_barrier(comm, ranks - 1), "thread_group was destroyed");
        });
        destroyer.join();
        CHECK(told == ranks - 1);
    }
}

TEST_CASE("a rank that leaves its group is named with its reason, also where it never came") {
    for (const int ranks : {2, 3, 4})
        for (const bool comes : {true, false}) {
            hvd::thread_group group{ranks};
            std::atomic<int> told{0};
            on_own_threads(ranks, [&](int rank) {
                const bool leaves = rank == ranks - 1;
                std::optional<communicator> comm;
                if (comes || !leaves) comm = group.communicator(rank);
                if (leaves) {
                    group.leave(rank, "its loader failed");
                    CHECK_THROWS_AS(group.communicator(rank), hvd::usage_error);
                    return;
                }
                told += contains(failed_barrier(*comm, ranks - 1), "left (its loader failed)");
                comm.reset();
                comm = group.communicator(rank);
                told += contains(failed_barrier(*comm, ranks - 1), "left (its loader failed)");
            });
            CHECK(told == 2 * (ranks - 1));
        }
}

TEST_CASE("a thread has ranks in several groups") {
    for (const int ranks : {1, 2, 3, 4}) {
        hvd::thread_group forward{ranks}, backward{ranks};
        on_own_threads(ranks, [&](int rank) {
            auto first = forward.communicator(rank);
            auto second = backward.communicator(ranks - 1 - rank);
            for (int i = 0; i < 10; ++i) {
                check_sum(first);
                check_sum(second);
            }
            int x = rank;
            second.broadcast(x);
            CHECK(x == ranks - 1);
        });
    }
}

TEST_CASE("a group's communicators have the policy that is named and the group's options") {
    for (const int ranks : {2, 3, 4}) {
        hvd::thread_group group{ranks, {.node_size = 2}};
        on_own_threads(ranks, [&](int rank) {
            auto checked = group.communicator<hvd::checked<hvd::threads>>(rank);
            check_sum(checked);
            CHECK(checked.local_rank() == rank % 2);
            CHECK_THROWS_AS(checked.barrier({.name = rank == 0 ? "one" : "other"}),
                            hvd::mismatch_error);
        });
        on_own_threads(ranks, [&](int rank) {
            auto watched = group.communicator<hvd::observed<hvd::threads, hvd::statistics>>(rank);
            check_sum(watched);
            CHECK(watched.observer().calls() == 2);
        });
    }
}

TEST_CASE("a group belongs to the process that made it") {
    hvd::thread_group group{2};
    auto mine = group.communicator(0);
    if (const pid_t child = fork(); child == 0) {
        int status = 1;
        try {
            group.communicator(1);
        } catch (const hvd::usage_error& e) {
            status = contains(e.what(), "forked") ? 0 : 2;
        }
        _exit(status);
    } else {
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(status == 0);
    }
}

TEST_CASE("a world of threads inside run_threads is refused, and self() is this thread alone") {
    using threads = hvd::communicator<hvd::threads>;
    CHECK(threads::world().size() == 1);
    for (const int ranks : {1, 2, 3})
        hvd::run_threads(ranks, [](communicator& comm) {
            CHECK_THROWS_WITH_AS(threads::world(),
                                 doctest::Contains("take the communicator that run_threads hands"),
                                 hvd::usage_error);
            threads alone = threads::self();
            std::vector<int> x(10, comm.rank());
            alone.allreduce(x, hvd::sum);
            CHECK(x == std::vector<int>(10, comm.rank()));
            CHECK(hvd::communicator<hvd::checked<hvd::threads>>::self().size() == 1);
            // A thread that a rank starts is no rank.
            std::thread([] { CHECK(threads::world().size() == 1); }).join();
            comm.barrier();
        });
}

TEST_CASE("threads refuse an option that only MPI takes") {
    CHECK_THROWS_WITH_AS(hvd::run_threads(2, [](communicator&) {}, {.mpi_between_nodes = true}),
                         doctest::Contains("this backend has no MPI"), hvd::usage_error);
}

}  // namespace thread_group_tests
