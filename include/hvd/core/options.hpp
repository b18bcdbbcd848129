// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tuning_options.hpp"

namespace hvd::inline v0 {

/// A span of time in options. Any `std::chrono` duration converts (`.timeout = 5s`); hvd itself
/// does not include `<chrono>`. The longest span is 146 years.
class time_span {
public:
    /// `{}` is a span of 0. As with `std::chrono::duration`, a variable without `{}` has no value.
    constexpr time_span() = default;

    template <class Duration>
        requires requires(const Duration& d) {
            d.count();
            Duration::period::num;
            Duration::period::den;
        }
    constexpr time_span(const Duration& d)
        : nanoseconds(nearest(static_cast<long double>(d.count()) * 1e9L * Duration::period::num /
                              Duration::period::den)) {}

    // A bare number in the place of a span.
    template <class N>
        requires(std::integral<N> || std::floating_point<N>)
    constexpr time_span(N) : nanoseconds(0) {
        static_assert(!std::is_arithmetic_v<N>,
                      "hvd: a span of time has a unit: std::chrono::seconds(30), or 30s");
    }

    static constexpr time_span of_nanoseconds(std::int64_t n) {
        time_span span{};
        span.nanoseconds = n;
        return span;
    }

    std::int64_t nanoseconds;  ///< the span

private:
    // Such a span can still be added to the current time without overflow.
    static constexpr std::int64_t longest = INT64_MAX / 2;

    static constexpr std::int64_t nearest(long double n) {
        if (n > static_cast<long double>(longest)) return longest;
        if (n < -static_cast<long double>(longest)) return -longest;
        return n == n ? static_cast<std::int64_t>(n) : 0;
    }
};

/// The rank that sends (broadcast, scatter) or receives (reduce, gather): `hvd::root{0}`.
struct root {
    int rank = 0;

    constexpr explicit root(int r = 0) : rank(r) {}

    /// From other integers; a number that is no int is no rank, and the call refuses it.
    template <std::integral N>
        requires(!std::same_as<N, int>)
    constexpr explicit root(N r) : rank(static_cast<N>(static_cast<int>(r)) == r ? int(r) : -1) {}

    // A bare number where a root is wanted: broadcast(x, 0). The constructors above are preferred
    // where a root is written out.
    template <class N>
        requires std::integral<N>
    root(N) {
        static_assert(!std::integral<N>, "hvd: a root is written hvd::root{0}, not 0");
    }
};

/// The type of `hvd::adopt`.
struct adopt_t {};
/// Says that a communicator made from a handle owns it and frees it.
inline constexpr adopt_t adopt{};

/// The type of `hvd::borrow`.
struct borrow_t {};
/// Says that a communicator made from a handle leaves it to its owner, who keeps it alive.
inline constexpr borrow_t borrow{};

/// Options of a call.
struct options {
    std::string_view name = {};  ///< for errors and timelines; need not be unique
    time_span timeout = {};      ///< for this call; 0 takes the communicator's
};

/// Options of a reduction. Horovod: `prescale_factor`, `postscale_factor`.
struct reduce_options {
    std::string_view name = {};  ///< for errors and timelines
    double prescale = 1;         ///< each rank's tensor is multiplied by it before the reduction
    double postscale = 1;        ///< the result is multiplied by it
    time_span timeout = {};      ///< for this call; 0 takes the communicator's
};

/// Options of a new communicator. All ranks give the same.
struct communicator_options {
    time_span timeout = {};  ///< for every call; 0 waits without a limit, as MPI does
    time_span destructor_timeout = time_span::of_nanoseconds(detail::tuning::destructor_timeout);
    /// a call without a timeout that has waited for so long writes once, to the sink of
    /// `set_error_sink`, for which ranks; 0 never does. A negative span takes HVD_WAITING_NOTICE
    /// (whole seconds) from the environment, or else 10 s
    time_span waiting_notice = time_span::of_nanoseconds(-1);
    /// ranks taken as one node, as if on hosts of their own; 0 takes HVD_NODE_SIZE from the
    /// environment, or else the real nodes
    int node_size = 0;
    bool cross_by_library =
        /// MPI only: an allreduce uses MPI_Allreduce between nodes. MPI_Allreduce has no timeout
        /// and determines the bits. Elements and operations that MPI lacks go as without this
        /// option
        false;
    std::size_t window_bytes = detail::tuning::window_bytes;  ///< a window; each rank has four
    tuning_options tuning = {};  ///< thresholds, which `retune` may change
    /// the processor of each local rank's threads: the progress thread, which the first
    /// asynchronous call starts, and those of engines; empty leaves the choice to the system
    std::vector<int> cpus = {};
    /// several threads of a rank make calls, in an order that the program keeps equal on all ranks;
    /// otherwise the communicator is bound to the thread that makes its first call, until
    /// `hand_over`. Not for threads of OpenMP in a parallel region, whose order differs
    bool threads_take_turns = false;
};

namespace detail {

[[gnu::cold]] inline message negative_time(std::string_view name, time_span value) {
    return text(".", name, " is ", value.nanoseconds, " ns, and must not be negative");
}

// @throws hvd::usage_error for a time that can't be
[[gnu::cold]] inline void check_times(const communicator_options& options, int rank) {
    const auto check = [rank](const char* name, time_span value) {
        if (value.nanoseconds < 0)
            throw usage_error(rank,
                              text("hvd: ", negative_time(name, value), " (rank ", rank, ")"));
    };
    check("timeout", options.timeout);
    check("destructor_timeout", options.destructor_timeout);
}

}  // namespace detail

}  // namespace hvd::inline v0
