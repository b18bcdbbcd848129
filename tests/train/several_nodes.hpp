// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "hvd_test.hpp"

namespace hvd_test {

// Runs f on several nodes, where every rank takes the whole step. On MPI each rank is a node, or
// two ranks are.
template <class F>
void on_several_nodes([[maybe_unused]] F f) {
#if defined(HVD_TEST_BACKEND_MPI)
    const failing_rank_does_not_hang guard;
    for (const int node_size : {1, 2}) {
        if (node_size >= launched_ranks()) continue;
        INFO("with nodes of ", node_size, " ranks");
        auto world = communicator::world({.node_size = node_size});
        f(world);
    }
#endif
}

}  // namespace hvd_test
