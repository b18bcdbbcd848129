// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "observer.hpp"

namespace hvd {
inline namespace v0 {

/// An observer that counts: `hvd::communicator<hvd::observed<hvd::mpi, hvd::statistics>>`.
///
/// Read it through `comm.observer()` between calls, while no call is pending.
class statistics {
public:
    void on_begin(const event& e) { begun_ = e.time; }

    void on_end(const event& e, bool succeeded) {
        ++calls_;
        if (!succeeded) ++failures_;
        bytes_ += e.bytes;
        nanoseconds_ += e.time - begun_;
    }

    std::size_t calls() const { return calls_; }
    std::size_t failures() const { return failures_; }
    /// The bytes that this rank contributed.
    std::size_t bytes() const { return bytes_; }
    /// The time spent inside collectives, including the wait for peers.
    double seconds() const { return double(nanoseconds_) * 1e-9; }

private:
    std::size_t calls_ = 0, failures_ = 0, bytes_ = 0;
    std::int64_t nanoseconds_ = 0, begun_ = 0;
};

static_assert(observer<statistics>);

}  // namespace v0
}  // namespace hvd
