// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hvd {
inline namespace v0 {

/// A span of time in options: any `std::chrono` duration converts (`.deadline = 5s`). Including the
/// standard's chrono header is the user's business; hvd does without. 146 years is the longest
/// there is.
class time_span {
public:
    constexpr time_span() = default;

    template <class Duration>
        requires requires(const Duration& d) {
            d.count();
            Duration::period::num;
            Duration::period::den;
        }
    constexpr time_span(const Duration& d)
        : nanoseconds_(nearest(static_cast<long double>(d.count()) * 1e9L * Duration::period::num /
                               Duration::period::den)) {}

    static constexpr time_span of_nanoseconds(std::int64_t n) {
        time_span span;
        span.nanoseconds_ = n;
        return span;
    }

    constexpr std::int64_t nanoseconds() const { return nanoseconds_; }

private:
    // Longer than anybody waits, and still to be added to the time of day.
    static constexpr std::int64_t longest = INT64_MAX / 2;

    static constexpr std::int64_t nearest(long double n) {
        if (n > static_cast<long double>(longest)) return longest;
        if (n < -static_cast<long double>(longest)) return -longest;
        return n == n ? static_cast<std::int64_t>(n) : 0;
    }

    std::int64_t nanoseconds_ = 0;
};

/// The rank that sends (broadcast, scatter) or receives (reduce, gather): `hvd::root{0}`.
struct root {
    int rank = 0;
    constexpr explicit root(int r = 0) : rank(r) {}
};

/// Says that a communicator made from a handle owns it and frees it.
struct adopt_t {};
inline constexpr adopt_t adopt{};

/// Says that a communicator made from a handle leaves it to its owner, who keeps it alive.
struct borrow_t {};
inline constexpr borrow_t borrow{};

/// What a call may be told beyond its arguments.
struct options {
    std::string_view name = {};  ///< for errors and timelines; need not be unique (feature I5)
    time_span deadline = {};     ///< for this call; 0: the communicator's
};

/// What a reduction may be told beyond its arguments. Feature B4.
struct reduce_options {
    std::string_view name = {};  ///< for errors and timelines
    double prescale = 1;         ///< each rank's tensor is multiplied by it before the reduction
    double postscale = 1;        ///< the result is multiplied by it
    time_span deadline = {};     ///< for this call; 0: the communicator's
};

/// What a communicator is told when it is made; all ranks say the same.
struct communicator_options {
    time_span deadline = {};  ///< for every call; 0: none, wait as MPI does
    time_span destructor_deadline = time_span::of_nanoseconds(2'000'000'000);
    int node_size = 0;  ///< ranks taken as one node (as if on hosts of their own); 0: as it is,
                        ///< or what the environment variable HVD_NODE_SIZE says
    bool cross_by_library =
        false;  ///< MPI: what is between nodes in an allreduce is an MPI_Allreduce, which
                ///< waits without a deadline and gives the bits that MPI gives;
                ///< elements and operations that MPI lacks go as without it
    std::size_t window_bytes = std::size_t(256) << 10;  ///< shared memory per rank and half
    std::size_t device_window_bytes = std::size_t(16)
                                      << 20;  ///< `cuda_ipc`: device memory per rank and half
};

}  // namespace v0
}  // namespace hvd
