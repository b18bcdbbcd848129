// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <utility>
#include <vector>

#include "../../core/lean/text.hpp"

namespace hvd::inline v0::detail {

// A set of ranks, as ranges in ascending order.
class rank_set {
public:
    rank_set() = default;
    rank_set(int first, int last) { add(first, last); }
    explicit rank_set(const std::vector<int>& ranks) {
        for (const int rank : ranks) add(rank);
    }

    const std::vector<std::pair<int, int>>& ranges() const { return ranges_; }
    bool empty() const { return ranges_.empty(); }
    void clear() { ranges_.clear(); }

    int size() const {
        int n = 0;
        for (const auto& [first, last] : ranges_) n += last - first + 1;
        return n;
    }
    bool contains(int rank) const {
        for (const auto& [first, last] : ranges_)
            if (rank >= first && rank <= last) return true;
        return false;
    }

    void add(int rank) { add(rank, rank); }
    void add(int first, int last) {
        std::vector<std::pair<int, int>> merged;
        for (const auto& range : ranges_)
            if (range.second + 1 < first || range.first > last + 1) {
                merged.push_back(range);
            } else {
                first = range.first < first ? range.first : first;
                last = range.second > last ? range.second : last;
            }
        std::size_t at = 0;
        while (at < merged.size() && merged[at].first < first) ++at;
        merged.insert(merged.begin() + std::ptrdiff_t(at), {first, last});
        ranges_ = std::move(merged);
    }
    void add(const rank_set& others) {
        for (const auto& [first, last] : others.ranges_) add(first, last);
    }
    void remove(const rank_set& others) {
        rank_set rest;
        for (const auto& [first, last] : ranges_)
            for (int r = first; r <= last; ++r)
                if (!others.contains(r)) rest.add(r);
        ranges_ = std::move(rest.ranges_);
    }

    std::vector<int> list() const {
        std::vector<int> ranks;
        for (const auto& [first, last] : ranges_)
            for (int r = first; r <= last; ++r) ranks.push_back(r);
        return ranks;
    }

    // "rank 3", "ranks 0, 7 to 9"
    message print() const {
        message result(size() == 1 ? "rank " : "ranks ");
        bool first_range = true;
        for (const auto& [first, last] : ranges_) {
            result += text(first_range ? "" : ", ", first);
            if (last > first) result += text(last == first + 1 ? ", " : " to ", last);
            first_range = false;
        }
        return result;
    }

private:
    std::vector<std::pair<int, int>> ranges_;
};

}  // namespace hvd::inline v0::detail
