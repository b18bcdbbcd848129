// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: data::equal_batch needs all samples

#include <vector>

#include <hvd/data.hpp>

auto batches(const std::vector<int>& samples) {
    const auto some = hvd::data::from(samples) | hvd::data::filter([](int i) { return i > 0; });
    return some | hvd::data::equal_batch(8);  // BAD
    return some | hvd::data::batch(8);        // GOOD
}
