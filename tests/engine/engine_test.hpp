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
#include "text_of.hpp"

namespace hvd_test {

using engine = hvd::engine<backend>;

// After this time a rank counts as late. A busy machine keeps no thread from running that long.
constexpr auto lateness = std::chrono::milliseconds(400);

// For tests that wait so long: two ranks and three.
template <class F>
void on_few_ranks(F f) {
    on_ranks_from(2, [&f](auto& comm) {
        if (comm.size() <= 3) f(comm);
    });
}

// The sum over the ranks of `first + rank`.
inline float sum_from(float first, int size) {
    return first * float(size) + float(size * (size - 1) / 2);
}

// The ranks that the peer_error of f names.
template <class F>
std::vector<int> peers_of(F f) {
    try {
        f();
    } catch (const hvd::peer_error& e) {
        return e.peers();
    }
    return {};
}

}  // namespace hvd_test
