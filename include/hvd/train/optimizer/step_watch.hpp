// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "../../observe/bucket_times.hpp"
#include "../../observe/report.hpp"
#include "../../platform/clock.hpp"
#include "optimizer.hpp"

namespace hvd::inline v0 {

/// The mean times of a training step on one rank, in seconds.
struct step_times {
    double computing = 0;      ///< between the steps: forward and backward pass, and input
    double waiting = 0;        ///< for the gradients of all ranks, after the backward pass
    double updating = 0;       ///< the optimizer's step
    double communicating = 0;  ///< the transfers of all buckets; 0 if no observer times them
    double samples = 0;        ///< of this rank

    double whole() const { return computing + waiting + updating; }
    /// The share of the communication during which the rank computed. 0 if nobody has timed it.
    double overlap() const {
        return communicating > waiting ? (communicating - waiting) / communicating : 0;
    }
};

/// The way in which all ranks have spent the steps of a training. It is the same on all ranks, but
/// for `steps` and `buckets`, which are those of this rank.
struct step_summary {
    /// The mean of a bucket's transfers.
    struct bucket {
        std::size_t bytes = 0;
        double seconds = 0;
    };

    double steps = 0;  ///< of this rank; ranks differ if some left steps out
    std::vector<step_times> ranks;
    std::vector<bucket> buckets;
    double samples_per_second = 0;  ///< of all ranks together
    bool times_buckets = false;     ///< an observer has timed the buckets
    int slowest = 0;  ///< the rank that computes and updates longest, for which the others wait

    /// A table of the ranks, and the buckets of this one. Numbers have points, whatever the locale.
    /// Without an observer of the buckets it has "-" in place of the times that nobody took.
    std::string text() const {
        std::string all = detail::fixed(steps, 0) + " steps, " +
                          detail::fixed(samples_per_second, 1) + " samples/s on " +
                          std::to_string(ranks.size()) + " ranks; rank " + std::to_string(slowest) +
                          " is the slowest\n";
        all += "rank  computing  waiting  updating  communicating (ms a step)  overlapped\n";
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            const step_times& t = ranks[r];
            all += column(4, std::to_string(r)) + column(11, in_ms(t.computing)) +
                   column(9, in_ms(t.waiting)) + column(10, in_ms(t.updating)) +
                   column(15, times_buckets ? in_ms(t.communicating) : "-") +
                   column(times_buckets ? 25 : 27,
                          times_buckets ? detail::fixed(100 * t.overlap(), 0) : "-") +
                   (times_buckets ? " %\n" : "\n");
        }
        for (std::size_t b = 0; b < buckets.size(); ++b)
            all += "bucket " + std::to_string(b) + ": " + std::to_string(buckets[b].bytes) +
                   " bytes, " + in_ms(buckets[b].seconds) + " ms\n";
        return all;
    }

private:
    static std::string in_ms(double seconds) { return detail::fixed(1e3 * seconds, 3); }
    static std::string column(std::size_t width, std::string value) {
        return value.size() < width ? std::string(width - value.size(), ' ') + value : value;
    }
};

/// Takes the steps of a distributed optimizer on the host, and measures where the time goes. A
/// program without one pays nothing. On a communicator of `observed<Backend, bucket_times>` it
/// knows the times of the buckets too.
///
/// Its first step does not count, since the ranks agree in it. Steps of optimizers on the device
/// only enqueue work, which a clock of the host cannot measure.
/// @snippet tests/train/snippets.cpp step_watch
template <class Comm, class Optimizer, class T>
    requires(!detail::device_communicator<Comm>)
class step_watch {
    using gradients = synchronized_gradients<T>;
    static constexpr bool times_buckets =
        requires(Comm& comm) { requires std::is_same_v<decltype(comm.observer()), bucket_times&>; };

public:
    /// `clock` returns nanoseconds.
    explicit step_watch(distributed_optimizer<Comm, Optimizer, T>& optimizer,
                        std::int64_t (*clock)() = detail::now)
        : optimizer_(optimizer), clock_(clock) {}

    /// Takes a step, to which this rank has contributed so many samples. `change(gradients)` may
    /// clip them before they are applied. It returns the result of `apply`. **Collective**.
    /// @throws as the `step` of the optimizer. A step that fails does not count.
    template <class Change>
    bool step(double samples, Change change) {
        const std::int64_t begun = clock_(), before = std::exchange(ended_, none);
        const buckets_end afterwards{optimizer_.comm()};
        auto synchronized = optimizer_.synchronize();
        const std::int64_t complete = clock_();
        change(synchronized);
        const bool stepped = optimizer_.apply(std::move(synchronized));
        ended_ = clock_();
        if (before == none) {  // the first step, or the first after one that failed
            if (steps_ == 0) begin_again();
            return stepped;
        }
        ++steps_;
        samples_ += samples;
        computing_ += begun - before;
        waiting_ += complete - begun;
        updating_ += ended_ - complete;
        return stepped;
    }
    bool step(double samples) {
        return step(samples, [](gradients&) {});
    }

    /// The steps since the last summary, on all ranks. **Collective**.
    step_summary summary() {
        step_summary all;
        all.times_buckets = times_buckets;
        step_times mine{mean(double(computing_)), mean(double(waiting_)), mean(double(updating_)),
                        0, samples_ / (steps_ > 0 ? double(steps_) : 1)};
        if constexpr (times_buckets)
            for (const auto& b : optimizer_.comm().observer().buckets()) {
                all.buckets.push_back({b.bytes, b.seconds() / double(b.calls > 0 ? b.calls : 1)});
                mine.communicating += all.buckets.back().seconds;
            }
        all.steps = double(steps_);
        gather(mine, all);
        begin_again();
        if (ended_ != none) ended_ = clock_();
        return all;
    }

private:
    static constexpr std::int64_t none = -1;

    // The next step begins with the first bucket, also after one that failed.
    struct buckets_end {
        std::remove_reference_t<typename detail::training_calls<Comm>::type>& comm;
        ~buckets_end() {
            if constexpr (times_buckets) comm.observer().end_step();
        }
    };

    double mean(double nanoseconds) const {
        return steps_ == 0 ? 0 : nanoseconds * 1e-9 / double(steps_);
    }

    void gather(const step_times& mine, step_summary& all) {
        const std::vector<double> numbers = {mine.computing, mine.waiting, mine.updating,
                                             mine.communicating, mine.samples};
        const auto got = optimizer_.comm().allgather(numbers, {.name = "step times"}).values;
        double samples = 0, longest = 0, slowest = -1;
        for (std::size_t at = 0; at < got.size(); at += numbers.size()) {
            const double* const x = got.data() + at;
            all.ranks.push_back({x[0], x[1], x[2], x[3], x[4]});
            const step_times& t = all.ranks.back();
            samples += t.samples;
            longest = t.whole() > longest ? t.whole() : longest;
            if (t.computing + t.updating <= slowest) continue;
            slowest = t.computing + t.updating;
            all.slowest = int(all.ranks.size()) - 1;
        }
        all.samples_per_second = longest > 0 ? samples / longest : 0;
    }

    void begin_again() {
        steps_ = 0;
        samples_ = 0;
        computing_ = waiting_ = updating_ = 0;
        if constexpr (times_buckets) optimizer_.comm().observer().clear();
    }

    distributed_optimizer<Comm, Optimizer, T>& optimizer_;
    std::int64_t (*clock_)();
    std::int64_t ended_ = none;  // the last step, if it did not fail
    std::uint64_t steps_ = 0;
    double samples_ = 0;
    std::int64_t computing_ = 0, waiting_ = 0, updating_ = 0;
};

}  // namespace hvd::inline v0
