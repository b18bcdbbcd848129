// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <vector>

#include "lateness.hpp"
#include "observer.hpp"

namespace hvd::inline v0 {

/// The calls of one collective that moved their data in one way. Times include the wait for ranks
/// that come later.
struct call_statistics {
    std::string_view collective;  ///< "allreduce", … It points to a constant
    data_path path = data_path::none;
    int size = 1;                 ///< ranks
    std::size_t calls = 0;        ///< calls that succeeded
    std::size_t failed = 0;       ///< calls that failed, for which there is neither path nor time
    std::size_t bytes = 0;        ///< that this rank contributed
    std::size_t total_bytes = 0;  ///< the sum of the calls' sizes, see `event::total_bytes`
    std::int64_t nanoseconds = 0;
    std::int64_t longest = 0;  ///< nanoseconds of the longest call

    double seconds() const { return double(nanoseconds) * 1e-9; }
    double longest_seconds() const { return double(longest) * 1e-9; }
    /// The sizes of the calls over their time, in bytes a second, as nccl-tests counts it. Only the
    /// root of a scatter knows its size.
    double algbw() const { return nanoseconds == 0 ? 0 : double(total_bytes) / seconds(); }
    /// `algbw` times the factor of the collective, which makes it comparable with the speed of the
    /// memory or network: 2(n-1)/n for an allreduce, (n-1)/n for those that give each rank another
    /// part, 1 for broadcast, reduce and scans.
    double busbw() const { return algbw() * bus_factor(collective, size); }

    /// The factors that nccl-tests publishes.
    static double bus_factor(std::string_view collective, int size) {
        const double part = double(size - 1) / double(size);
        if (collective == "allreduce") return 2 * part;
        if (collective == "broadcast" || collective == "reduce" || collective == "scan" ||
            collective == "send" || collective == "recv" || collective == "exscan")
            return 1;
        return part;
    }
};

/// An observer that counts: `hvd::communicator<hvd::observed<hvd::mpi, hvd::statistics>>`.
///
/// Read it through `comm.observer()` between calls, while no call is pending. With
/// `hvd/statistics.hpp` it becomes text, JSON or a file for Prometheus.
/// @snippet tests/docs/snippets.cpp statistics
class statistics {
public:
    void on_begin(const event& e) { begun_ = e.time; }

    void on_end(const event& e, bool succeeded) {
        rank_ = e.rank;
        size_ = e.size;
        const std::int64_t time = e.time - begun_;
        ++calls_;
        if (!succeeded) ++failed_;
        bytes_ += e.bytes;
        nanoseconds_ += time;
        call_statistics& of_path = entry_of(e);
        if (!succeeded) {
            ++of_path.failed;
            return;
        }
        ++of_path.calls;
        of_path.bytes += e.bytes;
        of_path.total_bytes += e.total_bytes;
        of_path.nanoseconds += time;
        if (time > of_path.longest) of_path.longest = time;
    }

    void on_arrivals(const event& e) { late_.add(e.name, e.took, e.size); }

    /// Says that a step of the program ends. Until it is called for the first time, each call is a
    /// step.
    void end_step() { late_.end_step(); }

    /// By rank, how long the others have waited for it, in the calls in which it came last. It is
    /// known on all ranks, one call later; empty before that, and on one rank.
    const std::vector<rank_lateness>& lateness() const { return late_.by_rank(); }
    /// The same for the calls of one name. Up to 256 names are counted.
    std::vector<rank_lateness> lateness(std::string_view name) const {
        return late_.by_rank_of(name);
    }
    /// The rank that was the slowest in most of the last 100 steps; -1 if nothing is known yet.
    int slowest_rank() const { return late_.slowest().rank; }
    /// The number of the last 100 steps in which it was the slowest.
    std::size_t steps_of_slowest() const { return late_.slowest().steps; }

    /// All calls, also those that failed.
    std::size_t calls() const { return calls_; }
    std::size_t failed() const { return failed_; }
    /// The bytes that this rank contributed.
    std::size_t bytes() const { return bytes_; }
    /// The time spent inside collectives, including the wait for peers.
    double seconds() const { return double(nanoseconds_) * 1e-9; }

    /// The rank that counts, and the number of ranks; -1 and 0 before the first call.
    int rank() const { return rank_; }
    int size() const { return size_; }
    /// One entry for each collective and path that occurred, in the order of their first calls.
    const std::vector<call_statistics>& by_path() const { return entries_; }

    /// Forgets everything.
    void clear() { *this = {}; }

private:
    call_statistics& entry_of(const event& e) {
        for (call_statistics& known : entries_)
            if (known.path == e.path && known.collective == e.collective) return known;
        call_statistics& fresh = entries_.emplace_back();
        fresh.collective = e.collective;
        fresh.path = e.path;
        fresh.size = e.size;
        return fresh;
    }

    int rank_ = -1, size_ = 0;
    std::size_t calls_ = 0, failed_ = 0, bytes_ = 0;
    std::int64_t nanoseconds_ = 0, begun_ = 0;
    std::vector<call_statistics> entries_;
    detail::lateness late_;
};

static_assert(observer<statistics>);

}  // namespace hvd::inline v0
