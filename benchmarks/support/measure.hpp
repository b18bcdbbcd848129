// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <hvd/hvd.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace bench {

/// One way to do the job. All ranks have the same candidates in the same order.
struct candidate {
    std::string name;
    std::function<void()> call;
    std::function<void()> prepare = {};       ///< makes the inputs of a call that is verified
    std::function<std::size_t()> wrong = {};  ///< elements of this rank that the call left wrong
};

/// Seconds, of one call.
struct timing {
    double time =
        0;  ///< median over the rounds of a round's mean over its calls and over the ranks
    double p50 = 0, p99 = 0;  ///< of single calls, over all ranks
    std::size_t wrong = 0;    ///< on all ranks together
    int rounds = 0;
};

/// How long to measure.
struct effort {
    double seconds = 1;  ///< for all candidates of one interleaving together
    int min_rounds = 5, max_rounds = 2000;
};

using clock = std::chrono::steady_clock;

inline double seconds_since(clock::time_point begin) {
    return std::chrono::duration<double>(clock::now() - begin).count();
}

inline double percentile(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    const auto at = values.begin() + std::ptrdiff_t(share * double(values.size() - 1) + 0.5);
    std::nth_element(values.begin(), at, values.end());
    return *at;
}

inline double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

template <class Comm>
double slowest(Comm& comm, double mine) {
    return std::ranges::max(comm.allgather(mine).values);
}

/// What one candidate showed on this rank.
struct samples {
    int calls_per_round = 1;
    std::vector<double> round_means, single;
};

// A collective is started by all ranks together, and its calls follow each other without a break,
// so that a short one is not hidden behind the way out of a barrier.
template <class Comm>
void run_round(Comm& comm, const candidate& c, samples& s) {
    comm.barrier();
    const auto begin = clock::now();
    auto last = begin;
    for (int i = 0; i < s.calls_per_round; ++i) {
        c.call();
        const auto now = clock::now();
        s.single.push_back(std::chrono::duration<double>(now - last).count());
        last = now;
    }
    s.round_means.push_back(std::chrono::duration<double>(last - begin).count() /
                            s.calls_per_round);
}

// Seconds of a call among some that follow each other.
template <class Comm>
double estimate(Comm& comm, const candidate& c, int calls) {
    comm.barrier();
    const auto begin = clock::now();
    for (int i = 0; i < calls; ++i) c.call();
    return slowest(comm, seconds_since(begin) / calls);
}

template <class Comm>
std::size_t count_wrong(Comm& comm, const candidate& c) {
    if (c.prepare) c.prepare();
    comm.barrier();
    c.call();
    std::size_t all = 0;
    for (const std::size_t wrong : comm.allgather(c.wrong ? c.wrong() : std::size_t(0)).values)
        all += wrong;
    return all;
}

template <class Comm>
timing combine(Comm& comm, const samples& mine) {
    timing result;
    result.rounds = int(mine.round_means.size());
    std::vector<double> means(mine.round_means.size(), 0);
    const auto all = comm.allgather(mine.round_means).values;
    for (std::size_t i = 0; i < all.size(); ++i) means[i % means.size()] += all[i] / comm.size();
    result.time = median(std::move(means));
    // Enough single calls for a 99th percentile, and not a gigabyte of them.
    const std::size_t most = std::min<std::size_t>(mine.single.size(), 20000);
    const auto single = comm.allgather(hvd::view(mine.single.data(), most)).values;
    result.p50 = percentile(single, 0.5);
    result.p99 = percentile(single, 0.99);
    return result;
}

/// Lets the candidates take turns, so that all see the same machine, and gives each one's timing.
/// **Collective**. Every candidate is verified after it was timed.
template <class Comm>
std::vector<timing> interleave(Comm& comm, std::span<const candidate> candidates, const effort& e) {
    std::vector<samples> seen(candidates.size());
    double a_round = 0;
    for (std::size_t c = 0; c < candidates.size(); ++c) {
        if (candidates[c].prepare) candidates[c].prepare();
        candidates[c].call();  // touches the memory, wakes what sleeps
        double one = estimate(comm, candidates[c], 1);
        if (one < 1e-2)
            one = estimate(comm, candidates[c],
                           5);  // the first call after a barrier is not like those that follow
        if (one < 1e-4) one = estimate(comm, candidates[c], 50);
        seen[c].calls_per_round = int(std::clamp(2e-4 / one, 1.0, 1000.0));
        a_round += one * seen[c].calls_per_round;
    }
    const int rounds =
        int(std::clamp(e.seconds / a_round, double(e.min_rounds), double(e.max_rounds)));
    const auto begin = clock::now();
    for (int round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            const std::size_t c =
                round % 2 == 0 ? i
                               : candidates.size() - 1 - i;  // nobody always follows the same one
            run_round(comm, candidates[c], seen[c]);
        }
        // A machine that turns out busier than it was at first is not waited for.
        if (round + 1 >= e.min_rounds && slowest(comm, seconds_since(begin)) > e.seconds) break;
    }
    std::vector<timing> result;
    for (std::size_t c = 0; c < candidates.size(); ++c) {
        result.push_back(combine(comm, seen[c]));
        result.back().wrong = count_wrong(comm, candidates[c]);
    }
    return result;
}

}  // namespace bench
