// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: data::map has threads of its own before data::batch alone

#include <vector>

#include <hvd/data.hpp>

auto batches(const std::vector<int>& samples) {
    const auto first = [](const std::vector<int>& batch) { return batch.front(); };
    const auto some = hvd::data::from(samples) | hvd::data::batch(8);
    return some | hvd::data::map(first, {.threads = 4});  // BAD
    return some | hvd::data::map(first);                  // GOOD
}
