// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: data::into places vectors of numbers and texts

#include <memory_resource>
#include <vector>

#include <hvd/data.hpp>

struct own_batch {
    std::vector<int> numbers;
};

auto batches(const std::vector<int>& samples, std::pmr::memory_resource& memory) {
    const auto some = hvd::data::from(samples);
    const auto collate = [](std::vector<int> all) { return own_batch{all}; };
    return some | hvd::data::batch(8, collate) | hvd::data::into(memory);  // BAD
    return some | hvd::data::batch(8) | hvd::data::into(memory);           // GOOD
}
