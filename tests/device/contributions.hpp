// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The steps of a trainer whose result does not depend on the number of ranks.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace device_test {

constexpr int samples = 24;

inline float contribution(std::int64_t step, int sample, int i) {
    return float((step + sample) % 7 + std::int64_t(i));
}
inline std::vector<float> expected(std::int64_t steps) {
    std::vector<float> weights(3, 0);
    for (std::int64_t n = 0; n < steps; ++n)
        for (int s = 0; s < samples; ++s)
            for (int i = 0; i < 3; ++i) weights[std::size_t(i)] += contribution(n, s, i);
    return weights;
}
// The part of a rank in a step.
inline std::vector<float> contributions_of(int rank, int size, std::int64_t step) {
    std::vector<float> sum(3, 0);
    for (int s = rank; s < samples; s += size)
        for (int i = 0; i < 3; ++i) sum[std::size_t(i)] += contribution(step, s, i);
    return sum;
}

}  // namespace device_test
