// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <hvd/core/lean/function_ref.hpp>
#include <hvd/core/lean/order.hpp>

namespace order_tests {

TEST_CASE("indices are in the order of their keys, and equal keys stay in theirs") {
    std::mt19937 random(1);
    for (std::size_t n = 0; n < 70; ++n) {
        std::vector<std::int64_t> keys(n);
        for (auto& key : keys) key = std::int64_t(random() % 9) - 4;
        std::vector<std::size_t> expected(n);
        std::iota(expected.begin(), expected.end(), std::size_t(0));
        std::stable_sort(expected.begin(), expected.end(),
                         [&](std::size_t a, std::size_t b) { return keys[a] < keys[b]; });
        CHECK(hvd::detail::ascending(keys) == expected);
    }
}

TEST_CASE("a reference to a function calls it, and drops a result that nobody takes") {
    int calls = 0;
    const auto add = [&](int more) { return calls += more; };
    const hvd::detail::function_ref<int(int)> sum = add;
    CHECK(sum(3) == 3);
    const hvd::detail::function_ref<void(int)> silent = add;
    silent(4);
    const hvd::detail::function_ref<int(int)> copy = sum;
    CHECK(copy(1) == 8);
}

}  // namespace order_tests
