// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Progress threads keep to the processors that a program has chosen for them.

#include <sched.h>

#include "support.hpp"

namespace cpus_tests {

using namespace hvd_test;

namespace {

// The processors that this thread may run on.
std::vector<int> own_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    return cpus;
}

// One processor for each of `ranks` ranks, from the last to the first.
std::vector<int> cpus_for(int ranks) {
    const std::vector<int> all = own_cpus();
    std::vector<int> cpus;
    for (int rank = 0; rank < ranks; ++rank)
        cpus.push_back(all[all.size() - 1 - std::size_t(rank) % all.size()]);
    return cpus;
}

void check_cpus(communicator& comm, const std::vector<int>& chosen) {
    const std::vector<int> before = own_cpus();
    std::vector<int> seen;
    std::vector<float> x(100, 1);
    comm.allreduce_async(x, hvd::custom(
                                [&seen](float a, float b) {
                                    if (seen.empty()) seen = own_cpus();
                                    return a + b;
                                },
                                hvd::commutative))
        .wait();
    CHECK(x[99] == float(comm.size()));
    CHECK(own_cpus() == before);  // the caller's thread stays as it was
    if (comm.size() > 1 && !seen.empty() && seen != before)
        CHECK(seen == std::vector<int>{chosen[std::size_t(comm.local_rank())]});
    int moved = seen.size() == 1 ? 1 : 0;
    comm.allreduce(moved, hvd::sum);
    if (comm.size() > 1) CHECK(moved > 0);
}

}  // namespace

#if defined(HVD_TEST_LAUNCHED)

TEST_CASE("progress threads keep to their processors") {
    const failing_rank_does_not_hang guard;
    const auto chosen = cpus_for(launched_ranks());
    auto comm = world({.cpus = chosen});
    check_cpus(comm, chosen);
    auto half = comm.split(comm.rank() % 2);
    check_cpus(half, chosen);
}

TEST_CASE("a processor that a rank can't use makes no communicator") {
    const failing_rank_does_not_hang guard;
    auto all = world();
    std::vector<int> wrong = cpus_for(launched_ranks());
    wrong[std::size_t(all.local_size() - 1)] = 1000000;
    try {
        world({.cpus = wrong});
        FAIL_CHECK("it was made");
    } catch (const hvd::error& e) {
        CHECK(std::string(e.what()).find("is 1000000, which is no processor") != std::string::npos);
    }
    float x = 1;
    all.allreduce(x, hvd::sum);
    CHECK(x == float(all.size()));
}

#else

TEST_CASE("progress threads keep to their processors") {
    for (const int ranks : {1, 2, 3}) {
        const auto chosen = cpus_for(ranks);
        hvd_test::run_threads(ranks, [&](communicator& comm) { check_cpus(comm, chosen); },
                              {.cpus = chosen});
    }
}

TEST_CASE("processors that a rank can't use, and a list too short, are refused") {
    const auto refusal = [](std::vector<int> cpus) {
        try {
            hvd_test::run_threads(2, [](communicator&) {}, {.cpus = std::move(cpus)});
        } catch (const hvd::usage_error& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    const int there = own_cpus().front();
    CHECK(refusal({there}).find(".cpus has 1 processors, and the node of rank") !=
          std::string::npos);
    CHECK(refusal({there, 1000000}) ==
          "hvd: .cpus[1] is 1000000, which is no processor that rank 1 may run on");
    CHECK(refusal({-1, there}) ==
          "hvd: .cpus[0] is -1, which is no processor that rank 0 may run on");
    CHECK(refusal({there, there}) == "");
}

#endif

}  // namespace cpus_tests
