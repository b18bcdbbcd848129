// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <vector>

// What the two mains (threads_main.cpp, mpi_main.cpp) give to on_ranks.
namespace hvd_test {

// 1 2 3 4 5 7, or what HVD_TEST_RANKS says ("2" or "1,3").
const std::vector<int>& thread_counts();

// The number of MPI ranks of this launch.
int launched_ranks();

// Told by the destructor of a test's ranks that an exception is leaving them: the rank's output is
// printed and, if the others don't come to the end of the test case soon, the launch is aborted
// instead of waiting for the watchdog.
void an_exception_leaves();

struct failing_rank_does_not_hang {
    int exceptions = std::uncaught_exceptions();
    ~failing_rank_does_not_hang() {
        if (std::uncaught_exceptions() > exceptions) an_exception_leaves();
    }
};

}  // namespace hvd_test
