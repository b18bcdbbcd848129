// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "../core/lean/text.hpp"

namespace hvd::inline v0 {

/// How long the other ranks have waited for one rank, which came last.
struct rank_lateness {
    std::size_t calls = 0;         ///< in which it came last
    std::int64_t nanoseconds = 0;  ///< that a rank has waited for it, the mean of the others

    double seconds() const { return double(nanoseconds) * 1e-9; }
};

namespace detail {

// The rank that came last to a call: it has spent the least time in it.
struct last_rank {
    int rank = 0;
    std::int64_t waited = 0;  // the time that another rank has waited for it, the mean of all

    last_rank(const std::int64_t* took, int size) {
        std::int64_t sum = 0;
        for (int r = 0; r < size; ++r) {
            sum += took[r];
            if (took[r] < took[rank]) rank = r;
        }
        if (size > 1) waited = (sum - size * took[rank]) / (size - 1);
    }
};

// Who comes last: in all calls, by the names of the calls, and in the last steps. A call is a step
// unless the program says where its steps end.
class lateness {
public:
    static constexpr std::size_t most_steps = 100, most_names = 256;

    struct of_name {
        char name[48];  // as in a header
        std::vector<rank_lateness> by_rank;
    };

    // Adds a call. `took` has the time that each rank has spent in it: the last one has the least.
    void add(std::string_view name, const std::int64_t* took, int size) {
        if (size < 2) return;
        const last_rank last(took, size);
        count(by_rank_, size, last);
        if (of_name* const named = entry_of(name)) count(named->by_rank, size, last);
        step_.resize(std::size_t(size));
        step_[std::size_t(last.rank)] += last.waited;
        if (!has_steps_) close_step();
    }

    void end_step() {
        has_steps_ = true;
        close_step();
    }

    const std::vector<rank_lateness>& by_rank() const { return by_rank_; }
    std::vector<rank_lateness> by_rank_of(std::string_view name) const {
        name = name.substr(0, sizeof of_name::name - 1);
        for (const of_name& n : names_)
            if (name == n.name) return n.by_rank;
        return {};
    }
    const std::vector<of_name>& by_name() const { return names_; }

    // The rank that was the slowest in most of the last steps; -1 if there is none. A single long
    // wait, as for a disk, makes no rank a slow one.
    struct slowest_rank {
        int rank = -1;
        std::size_t steps = 0, of = 0;
    };
    slowest_rank slowest() const {
        std::vector<std::size_t> steps(by_rank_.size());
        for (const int rank : steps_) ++steps[std::size_t(rank)];
        slowest_rank result;
        for (std::size_t r = 0; r < steps.size(); ++r)
            if (steps[r] > result.steps) result = {int(r), steps[r], steps_.size()};
        return result;
    }
    // For a line that tells of a wait; empty if nobody knows.
    message remark() const {
        const slowest_rank s = slowest();
        if (s.rank < 0) return {};
        return text("; rank ", s.rank, " was the slowest in ", s.steps, " of the last ", s.of,
                    s.of == 1 ? " step" : " steps");
    }

private:
    static void count(std::vector<rank_lateness>& by_rank, int size, const last_rank& last) {
        by_rank.resize(std::size_t(size));
        rank_lateness& of_rank = by_rank[std::size_t(last.rank)];
        ++of_rank.calls;
        of_rank.nanoseconds += last.waited;
    }

    // Null for a call without a name, and if there are too many names.
    of_name* entry_of(std::string_view name) {
        name = name.substr(0, sizeof of_name::name - 1);
        if (name.empty()) return nullptr;
        for (std::size_t i = 0; i < names_.size(); ++i) {
            // Steps repeat their names in one order.
            of_name& known = names_[(next_ + i) % names_.size()];
            if (name != known.name) continue;
            next_ = (next_ + i + 1) % names_.size();
            return &known;
        }
        if (names_.size() == most_names) return nullptr;
        of_name& fresh = names_.emplace_back();
        store(fresh.name, name);
        return &fresh;
    }

    void close_step() {
        int slowest = -1;
        for (std::size_t r = 0; r < step_.size(); ++r)
            if (slowest < 0 || step_[r] > step_[std::size_t(slowest)]) slowest = int(r);
        if (slowest < 0) return;
        if (steps_.size() < most_steps) {
            steps_.push_back(slowest);
        } else {
            steps_[oldest_] = slowest;
            oldest_ = (oldest_ + 1) % most_steps;
        }
        step_.assign(step_.size(), 0);
    }

    std::vector<rank_lateness> by_rank_;
    std::vector<of_name> names_;
    std::size_t next_ = 0;            // the name that is expected
    std::vector<std::int64_t> step_;  // the waits of the present step, by rank
    std::vector<int> steps_;          // the slowest rank of each
    std::size_t oldest_ = 0;
    bool has_steps_ = false;
};

}  // namespace detail
}  // namespace hvd::inline v0
