// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: data::to_device finds no numbers in such a batch

#include <string>
#include <vector>

#include <hvd/data_device.hpp>

auto batches(const std::vector<std::string>& samples) {
    namespace data = hvd::data;
    const auto texts = data::from(samples) | data::batch(8);
    return texts | data::map(data::to_device());                // BAD
    return texts | data::map([](auto all) { return all[0]; });  // GOOD
}
