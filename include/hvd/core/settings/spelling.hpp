// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string_view>
#include <vector>

#include "../error.hpp"

namespace hvd::inline v0::detail {

// The number of letters that are added, left out or replaced to make one word of the other.
[[gnu::cold]] inline std::size_t spelling_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = std::exchange(row[0], i);
        for (std::size_t j = 1; j <= b.size(); ++j) {
            std::size_t least = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            if (row[j] + 1 < least) least = row[j] + 1;
            if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
            diagonal = std::exchange(row[j], least);
        }
    }
    return row[b.size()];
}

// Finds the known name that an unknown one was meant to be.
class best_spelling {
public:
    // A third of the letters may differ, not counting those that all variables begin with.
    explicit best_spelling(std::string_view unknown)
        : unknown_(unknown),
          least_((unknown.size() - (unknown.starts_with("HVD_") ? 4 : 0)) / 3 + 1) {}

    void offer(std::string_view known) {
        // Longer names are too far away, and would take long to compare.
        if (unknown_.size() > known.size() + least_ || known.size() > unknown_.size() + least_)
            return;
        if (const std::size_t d = spelling_distance(unknown_, known); d < least_) {
            least_ = d;
            best_ = known;
        }
    }

    // The nearest name, or nothing.
    std::string_view best() const { return best_; }
    message question() const {
        return best_.empty() ? message() : text(". Did you mean ", best_, "?");
    }

private:
    std::string_view unknown_, best_;
    std::size_t least_;
};

}  // namespace hvd::inline v0::detail
