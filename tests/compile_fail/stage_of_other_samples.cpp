// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the function of data::map takes (sample) or (sample, data::random&), and is const

#include <vector>

#include <hvd/data.hpp>

auto mapped(const std::vector<int>& samples) {
    const auto from = hvd::data::from(samples);
    return from | hvd::data::map([](int* i) { return i; });  // BAD
    return from | hvd::data::map([](int i) { return i; });   // GOOD
}
