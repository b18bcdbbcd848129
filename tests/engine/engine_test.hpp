// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <hvd/engine.hpp>

#include "hvd_test.hpp"

namespace hvd_test {

using engine = hvd::engine<backend>;

// The sum over the ranks of `first + rank`.
inline float sum_from(float first, int size) {
    return first * float(size) + float(size * (size - 1) / 2);
}

// Runs f on ranks whose communicator has a policy around the tests' backend.
template <class P, class F>
void on_ranks_of(F f) {
#if defined(HVD_TEST_BACKEND_MPI)
    const failing_rank_does_not_hang guard;
    auto world = hvd::communicator<P>::world();
    f(world);
#else
    for (const int ranks : thread_counts()) hvd::run_threads<P>(ranks, f);
#endif
}

// The text of the exception that f throws, or an empty one.
template <class E, class F>
std::string text_of(F f) {
    try {
        f();
    } catch (const E& e) {
        return e.what();
    }
    return {};
}

}  // namespace hvd_test
