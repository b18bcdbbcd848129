// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd_test {

// A hash of results (FNV-1a). Tests hold it against a number in their source, so that every
// processor for which they are compiled must give the same bits.
class checksum {
public:
    template <class T>
    void add(const std::vector<T>& results) {
        const auto* byte = reinterpret_cast<const unsigned char*>(results.data());
        for (std::size_t i = 0; i < results.size() * sizeof(T); ++i)
            value = (value ^ byte[i]) * 0x100000001b3u;
    }

    std::uint64_t value = 0xcbf29ce484222325u;
};

}  // namespace hvd_test
