// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <vector>

#include "observer.hpp"

namespace hvd::inline v0 {

/// An observer that times the buckets of a distributed optimizer, for `step_watch`:
/// `hvd::communicator<hvd::observed<hvd::mpi, hvd::bucket_times>>`.
///
/// A time is that of the transfer, including the wait for ranks that come later. Read it through
/// `comm.observer()` between steps.
class bucket_times {
public:
    /// The calls of one bucket.
    struct bucket {
        std::size_t bytes = 0;  ///< of one step
        std::int64_t nanoseconds = 0;
        std::size_t calls = 0;

        /// The time of all these calls.
        double seconds() const { return double(nanoseconds) * 1e-9; }
    };

    void on_begin(const event& e) { begun_ = e.time; }

    void on_end(const event& e, bool succeeded) {
        if (!e.name.ends_with("gradients")) return;
        if (next_ == buckets_.size()) buckets_.emplace_back();
        bucket& b = buckets_[next_++];
        if (!succeeded) return;
        b.bytes = e.bytes;
        b.nanoseconds += e.time - begun_;
        ++b.calls;
    }

    /// The next bucket is the first one again.
    void end_step() { next_ = 0; }
    /// Forgets all times.
    void clear() {
        buckets_.clear();
        next_ = 0;
    }

    /// The buckets, in the order in which they start in a step.
    const std::vector<bucket>& buckets() const { return buckets_; }

private:
    std::vector<bucket> buckets_;
    std::size_t next_ = 0;
    std::int64_t begun_ = 0;
};

static_assert(observer<bucket_times>);

}  // namespace hvd::inline v0
