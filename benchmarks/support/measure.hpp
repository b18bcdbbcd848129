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
    std::function<void()> prepare = {};  ///< makes the inputs of a call that is verified
    /// counts the elements of this rank that the call left wrong
    std::function<std::size_t()> wrong = {};
};

/// Times of one call, in seconds.
struct timing {
    double time =
        0;  ///< the median over the rounds; a round is the mean over its calls and over the ranks
    double least = 0, most = 0;  ///< the same of the fastest and of the slowest rank of each round
    double p50 = 0, p99 = 0;     ///< percentiles of single calls, over all ranks
    std::size_t wrong = 0;       ///< sum over all ranks
    int rounds = 0;
};

/// How the calls of a round follow each other, and which time counts.
enum class calls {
    back_to_back,   ///< without a break, as in OSU's benchmarks: each rank's own time
    after_barrier,  ///< each after a barrier: each rank's own time
    until_last,     ///< the same: until the last rank has its result, on one machine's clock
    rewritten       ///< after_barrier, with inputs that were written before the barrier
};

/// The duration of a measurement, and its calls.
struct effort {
    double seconds = 1;  ///< for all candidates of one interleaving together
    int min_rounds = 5, max_rounds = 2000;
    calls how = calls::back_to_back;
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

/// The measurements of one candidate on this rank.
struct samples {
    int calls_per_round = 1;
    std::vector<double> round_means, single;
};

// Replaces the times of this rank's calls by those from the first rank's entry to the last one's
// exit.
template <class Comm>
void count_until_last(Comm& comm, std::vector<double>& entries, std::vector<double>& exits) {
    const std::size_t n = entries.size();
    const auto first = comm.allgather(entries).values, last = comm.allgather(exits).values;
    for (std::size_t i = 0; i < first.size(); ++i) {
        entries[i % n] = std::min(entries[i % n], first[i]);
        exits[i % n] = std::max(exits[i % n], last[i]);
    }
}

// All ranks start a collective together. Back to back, the exit from a barrier does not hide a
// short call.
template <class Comm>
void run_round(Comm& comm, const candidate& c, samples& s, calls how) {
    const auto seconds = [] { return seconds_since(clock::time_point()); };
    std::vector<double> entries, exits;
    comm.barrier();
    double now = seconds();
    for (int i = 0; i < s.calls_per_round; ++i) {
        if (how == calls::rewritten && c.prepare) c.prepare();
        if (how != calls::back_to_back) {
            comm.barrier();
            now = seconds();
        }
        entries.push_back(now);
        c.call();
        exits.push_back(now = seconds());
    }
    if (how == calls::until_last) count_until_last(comm, entries, exits);
    double sum = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        s.single.push_back(exits[i] - entries[i]);
        sum += exits[i] - entries[i];
    }
    s.round_means.push_back(sum / s.calls_per_round);
}

// Returns the seconds of a call among several that follow each other.
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
    const std::size_t rounds = mine.round_means.size();
    std::vector<double> means(rounds, 0), fastest(rounds, 1e300), slowest_ones(rounds, 0);
    const auto all = comm.allgather(mine.round_means).values;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const std::size_t round = i % rounds;
        means[round] += all[i] / comm.size();
        fastest[round] = std::min(fastest[round], all[i]);
        slowest_ones[round] = std::max(slowest_ones[round], all[i]);
    }
    result.time = median(std::move(means));
    result.least = median(std::move(fastest));
    result.most = median(std::move(slowest_ones));
    // That many single calls are enough for a 99th percentile, and less than a gigabyte.
    const std::size_t most = std::min<std::size_t>(mine.single.size(), 20000);
    const auto single = comm.allgather(hvd::view(mine.single.data(), most)).values;
    result.p50 = percentile(single, 0.5);
    result.p99 = percentile(single, 0.99);
    return result;
}

/// Measures the candidates in turns, so that all see the same machine, and returns the timing of
/// each. **Collective**. Every candidate is verified after it was timed.
template <class Comm>
std::vector<timing> interleave(Comm& comm, std::span<const candidate> candidates, const effort& e) {
    std::vector<samples> seen(candidates.size());
    double a_round = 0;
    for (std::size_t c = 0; c < candidates.size(); ++c) {
        if (candidates[c].prepare) candidates[c].prepare();
        candidates[c].call();  // touches the memory and wakes sleeping threads
        double one = estimate(comm, candidates[c], 1);
        if (one < 1e-2)
            one = estimate(comm, candidates[c],
                           5);  // the first call after a barrier differs from those that follow
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
                               // the order alternates, so that no candidate always follows the same
                               // one
                               : candidates.size() - 1 - i;
            run_round(comm, candidates[c], seen[c], e.how);
        }
        // The measurement ends in time even if the machine turns out busier than at first.
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
