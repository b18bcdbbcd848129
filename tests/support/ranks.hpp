// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <vector>

// The functions that the mains (threads_main.cpp, mpi_main.cpp, tcp_main.cpp) provide to on_ranks.
namespace hvd_test {

// Returns 1 2 3 4 5 7, or the numbers in HVD_TEST_RANKS ("2" or "1,3").
const std::vector<int>& thread_counts();

// Returns the number of ranks of this launch of processes.
int launched_ranks();

// The destructor of a test's ranks calls it when an exception leaves them. It prints the rank's
// output. If the others don't soon reach the end of the test case, it aborts the launch instead of
// waiting for the watchdog.
void an_exception_leaves();

struct failing_rank_does_not_hang {
    int exceptions = std::uncaught_exceptions();
    ~failing_rank_does_not_hang() {
        if (std::uncaught_exceptions() > exceptions) an_exception_leaves();
    }
};

}  // namespace hvd_test
