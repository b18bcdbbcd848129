// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace hvd_test {

// Adasum, computed by one rank.
inline std::vector<double> adasum_of_two(const std::vector<double>& a,
                                         const std::vector<double>& b) {
    long double aa = 0, bb = 0, ab = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        aa += (long double)a[i] * a[i];
        bb += (long double)b[i] * b[i];
        ab += (long double)a[i] * b[i];
    }
    std::vector<double> c(a.size());
    for (std::size_t i = 0; i < a.size(); ++i)
        c[i] =
            double((aa == 0 ? 1 : 1 - ab / aa / 2) * a[i] + (bb == 0 ? 1 : 1 - ab / bb / 2) * b[i]);
    return c;
}

// Combines neighbours first, in rank order.
inline std::vector<double> adasum_of(std::vector<std::vector<double>> all) {
    while (all.size() > 1) {
        std::vector<std::vector<double>> next;
        for (std::size_t p = 0; p < all.size(); p += 2)
            next.push_back(p + 1 < all.size() ? adasum_of_two(all[p], all[p + 1]) : all[p]);
        all = std::move(next);
    }
    return all[0];
}

}  // namespace hvd_test
