// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The examples of docs/data.md and of the headers' comments.

#include <cstdint>
#include <vector>

#include <hvd/data.hpp>

#include "hvd_test.hpp"

namespace data_snippets {

TEST_CASE("permutation snippet") {
    std::vector<std::uint64_t> order;
    //! [permutation]
    const hvd::data::permutation shuffled(1'000'000'000'000, /*seed*/ 42, /*epoch*/ 3);
    for (std::uint64_t i = 0; i < 5; ++i) order.push_back(shuffled(i));  // the first five samples
    const std::uint64_t back = shuffled.position_of(order[4]);           // 4
    //! [permutation]
    CHECK(back == 4);
}

}  // namespace data_snippets
