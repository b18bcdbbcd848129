// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <doctest/doctest.h>

#include <atomic>

#include "elastic_job.hpp"

namespace hvd_test {

// Does steps and commits them until it is over on all ranks.
template <class State, class Comm, class Step>
void work_until(const std::atomic<bool>& is_over_here, State& state, Comm& ranks, Step step) {
    for (;;) {
        int is_over = is_over_here ? 1 : 0;
        ranks.allreduce(is_over, hvd::min);
        if (is_over != 0) return;
        step();
        state.commit();
    }
}

}  // namespace hvd_test
