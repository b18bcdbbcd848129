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
/// does not include `<chrono>`. The longest span is 146 years, the shortest one a nanosecond.
class time_span {
public:
    /// Makes a span of 0.
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
        time_span span;
        span.nanoseconds = n;
        return span;
    }

    std::int64_t nanoseconds = 0;  ///< the span

private:
    // Such a span can still be added to the current time without overflow.
    static constexpr std::int64_t longest = INT64_MAX / 2;

    static constexpr std::int64_t nearest(long double n) {
        if (n > static_cast<long double>(longest)) return longest;
        if (n < -static_cast<long double>(longest)) return -longest;
        if (n > 0 && n < 1) return 1;  // a shorter time is no other word for 0
        if (n < 0 && n > -1) return -1;
        return n == n ? static_cast<std::int64_t>(n) : 0;
    }
};

/// The type of `hvd::forever`.
struct forever_t {};
/// No limit of time: `.timeout = hvd::forever`.
inline constexpr forever_t forever{};

/// The longest time that something may take: `.timeout = 5s`, or `hvd::forever`. A limit that is
/// not given is inherited or has a default, as the option says. Times of 0 and less are refused.
class time_limit {
public:
    /// Makes a limit that is not given.
    constexpr time_limit() = default;
    constexpr time_limit(forever_t) : code_(no_limit) {}
    constexpr time_limit(time_span span)
        : code_(span.nanoseconds > 0 ? span.nanoseconds + 1 : span.nanoseconds - 1) {}

    template <class Duration>
        requires(std::convertible_to<const Duration&, time_span> &&
                 !std::same_as<Duration, time_span>)
    constexpr time_limit(const Duration& duration) : time_limit(time_span(duration)) {}

    constexpr bool is_given() const { return code_ != 0; }
    /// True for a time, neither `hvd::forever` nor a limit that is not given.
    constexpr bool is_time() const { return std::uint64_t(code_) > no_limit; }
    /// The time, if it is one.
    constexpr time_span time() const {
        return time_span::of_nanoseconds(!is_time() ? 0 : code_ > 0 ? code_ - 1 : code_ + 1);
    }
    /// The nanoseconds of a time that a wait can have; 0 if there is none.
    constexpr std::int64_t patience() const { return code_ > no_limit ? code_ - 1 : 0; }
    /// True for a time that no wait can have: 0, or less.
    constexpr bool is_wrong() const { return code_ < 0; }
    /// Returns the limit, or another one if it is not given.
    constexpr time_limit or_else(time_limit other) const { return is_given() ? *this : other; }

    friend constexpr bool operator==(time_limit, time_limit) = default;

private:
    static constexpr std::int64_t no_limit = 1;

    std::int64_t code_ = 0;  // 0: not given; a time lies one farther from 0
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

/// The other rank of a message: `hvd::peer{1}`.
struct peer {
    int rank;

    constexpr explicit peer(int r) : rank(r) {}
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
    time_limit timeout = {};     ///< for this call; the communicator's if it is not given
    /// no rank leaves a broadcast, scatter or gather before all have come and agree on it
    bool confirm = false;
};

/// Options of a reduction. Horovod: `prescale_factor`, `postscale_factor`.
struct reduce_options {
    std::string_view name = {};  ///< for errors and timelines
    double prescale = 1;         ///< each rank's tensor is multiplied by it before the reduction
    double postscale = 1;        ///< the result is multiplied by it
    time_limit timeout = {};     ///< for this call; the communicator's if it is not given
    /// no rank leaves a reduce before all have come and agree on it
    bool confirm = false;
};

/// Options of a new communicator. All ranks give the same.
struct communicator_options {
    time_limit timeout = {};  ///< for every call; without one they wait forever, as in MPI
    /// the longest wait of a destructor for calls that are under way
    time_span destructor_timeout = time_span::of_nanoseconds(detail::tuning::destructor_timeout);
    /// a call without a timeout that has waited for so long writes once, to the sink of
    /// `set_message_sink`, for which ranks; `hvd::forever` never does. If it is not given it is
    /// HVD_WAITING_NOTICE of the environment, or else 10 s
    time_limit waiting_notice = {};
    /// ranks taken as one node, as if on hosts of their own; 0 takes HVD_NODE_SIZE from the
    /// environment, or else the real nodes
    int node_size = 0;
    bool mpi_between_nodes =
        /// MPI only: an allreduce uses MPI_Allreduce between nodes. MPI_Allreduce has no timeout
        /// and determines the bits. Elements and operations that MPI lacks go as without this
        /// option
        false;
    /// memory of each rank that the others of its node have mapped, through which tensors of any
    /// size go in chunks
    std::size_t shared_memory_bytes = detail::tuning::shared_memory_bytes;
    tuning_options tuning = {};  ///< thresholds, which `retune` may change
    /// the processor of each local rank's threads: the progress thread, which the first
    /// asynchronous call starts, and those of engines; empty leaves the choice to the system
    std::vector<int> cpus = {};
    /// several threads of a rank make calls, in an order that the program keeps equal on all ranks;
    /// otherwise the communicator is bound to the thread that makes its first call, until
    /// `hand_over`. Not for threads of OpenMP in a parallel region, whose order differs
    bool threads_take_turns = false;
    /// each rank looks, before an `allreduce`, `reduce` or `reduce_scatter` of floats or complex
    /// numbers, for the first NaN or infinity that it gives. If there is one all ranks throw
    /// `not_finite_error`, which names rank, tensor and element. It is for tensors of the host, and
    /// not for `hvd::adasum`. `docs/reference/errors.md` says what it costs
    bool check_finite = false;
    /// `.confirm` for all calls: a call that fails on one rank does so on all at once. Without it a
    /// rank may leave a small broadcast, scatter, gather or reduce inside a node when it needs
    /// nothing more from others. It is told in a later call then
    bool confirm = false;
};

namespace detail {

// The bytes of one of a rank's windows. The memory is rounded up to whole pages for each.
inline std::size_t window_bytes_of(const communicator_options& o) {
    return (o.shared_memory_bytes + tuning::windows - 1) / tuning::windows;
}

// @throws hvd::usage_error for an option of MPI's on another backend
[[gnu::cold]] inline void refuse_options_of_mpi(const communicator_options& o, int rank) {
    if (o.mpi_between_nodes)
        throw usage_error(rank,
                          "hvd: .mpi_between_nodes is given, and this backend has no MPI: "
                          "hvd::mpi takes it");
}

[[gnu::cold]] inline message negative_time(std::string_view name, time_span value) {
    return text(".", name, " is ", value.nanoseconds, " ns, and must not be negative");
}

[[gnu::cold]] inline message wrong_limit(std::string_view name, time_limit value) {
    return text(".", name, " is ", value.time().nanoseconds,
                " ns, and must be more than 0, or hvd::forever");
}

// A limit as ranks compare it.
[[gnu::cold]] inline message limit_text(time_limit limit) {
    if (!limit.is_given()) return message("not given");
    return limit.is_time() ? text(limit.time().nanoseconds, " ns") : message("forever");
}

// @throws hvd::usage_error for a time that can't be
[[gnu::cold]] inline void check_times(const communicator_options& options, int rank) {
    const auto refuse = [rank](const message& why) {
        throw usage_error(rank, text("hvd: ", why, " (rank ", rank, ")"));
    };
    if (options.timeout.is_wrong()) refuse(wrong_limit("timeout", options.timeout));
    if (options.waiting_notice.is_wrong())
        refuse(wrong_limit("waiting_notice", options.waiting_notice));
    if (options.destructor_timeout.nanoseconds < 0)
        refuse(negative_time("destructor_timeout", options.destructor_timeout));
}

}  // namespace detail

}  // namespace hvd::inline v0
