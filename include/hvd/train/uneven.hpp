// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <limits>
#include <type_traits>
#include <vector>

#include "../comm/communicator.hpp"
#include "../protocol/agreement.hpp"
#include "tensors.hpp"

namespace hvd::inline v0 {

/// The divisor of a mean over ranks if some have run out of data.
enum class join_mode : std::uint8_t {
    real_samples,  ///< divides by the samples that were there: Σ count · mean / Σ count
    /// divides by the number of ranks as Horovod's join does: ranks that ran out count as zeros
    divide_by_size,
};

/// Lets ranks train with different amounts of data, without waiting. Each step begins with one
/// message in which every rank sends its number of samples. A rank that has run out goes on sending
/// 0 until all have run out.
///
///     hvd::uneven_scope scope(comm);
///     while (scope.begin_step(batch ? batch->size() : 0)) {
///         if (batch) backward(*batch);  // a rank that has run out computes nothing
///         scope.mean(gradients);        // … and contributes zeros, whatever its gradients hold
///         optimizer.step(...);
///     }
///
/// With a distributed optimizer, which averages by itself, `scope.weigh(gradients)` takes the place
/// of `mean`.
///
/// **Collective**: `begin_step` and the reductions, in the same order on all ranks. Horovod:
/// `join`.
template <class Comm>
class [[nodiscard("hvd: it has the samples of the ranks from step to step")]] uneven_scope {
    static_assert(!detail::is_engine<Comm>,
                  "hvd: uneven_scope takes a communicator; ranks of an engine that have less data "
                  "call engine.join()");

public:
    [[nodiscard("hvd: it has the samples of the ranks from step to step")]]
    explicit uneven_scope(Comm& comm, join_mode mode = join_mode::real_samples)
        : comm_(comm), mode_(mode) {}

    /// Sends this rank's number of samples in this step. It returns false if no rank has any.
    bool begin_step(std::size_t samples) {
        counts_ = comm_.allgather(samples, {.name = "samples"}).values;
        total_ = 0;
        for (std::size_t r = 0; r < counts_.size(); ++r) {
            total_ += counts_[r];
            if (counts_[r] != 0) last_ = int(r);
        }
        return total_ > 0;
    }

    /// The number of samples of each rank in this step.
    const std::vector<std::size_t>& samples() const { return counts_; }
    /// True if this rank has samples in this step.
    bool takes_part() const { return !counts_.empty() && mine() > 0; }
    /// The highest rank that had samples in the last step with samples, so the last to run out. It
    /// is -1 before the first step.
    int last_rank() const { return last_; }

    /// The factor for this rank's mean. With it, an average over all ranks (by an allreduce or a
    /// distributed optimizer) is the mean over all samples of the step. It is 0 for a rank without
    /// samples, whose mean is no number: `weigh` makes zeros of it.
    double weight() const {
        require_step();
        if (mine() == 0) return 0;
        return mode_ == join_mode::divide_by_size ? 1
                                                  : comm_.size() * double(mine()) / double(total_);
    }

    /// Multiplies a mean over this rank's samples by `weight()`. A rank without samples gets zeros,
    /// also where the mean of none is a NaN. An average over all ranks is then the mean over all
    /// samples of the step.
    template <class X>
        requires writable<X>
    void weigh(X&& x) const {
        static_assert(!std::is_integral_v<detail::element_of<X>>,
                      "hvd: uneven_scope::weigh is of floating-point elements: the ranks' shares "
                      "of integers are none");
        multiply(detail::flat_view(x), weight());
    }

    /// Turns a mean over this rank's samples into the mean over all ranks' samples (see
    /// `join_mode`). A rank without samples passes any values of the same size. Integers are
    /// refused: the ranks' shares would each be truncated before they are added.
    template <class X>
        requires writable<X>
    void mean(X&& x) {
        static_assert(!std::is_integral_v<detail::element_of<X>>,
                      "hvd: uneven_scope::mean is of floating-point elements: the ranks' shares of "
                      "integers are none");
        const double share = weight() / comm_.size();
        const auto flat = detail::flat_view(x);
        multiply(flat, share);  // here, since a call's prescale is the same on all ranks
        comm_.allreduce(flat, sum, {.name = "mean of samples"});
    }

    /// Reduces with sum, min, max or product over the ranks that have samples. The others
    /// contribute the operation's neutral element.
    template <class X, class Op>
        requires writable<X>
    void reduce(X&& x, const Op& with) {
        using T = detail::element_of<X>;
        using limits = std::numeric_limits<T>;
        static_assert(
            limits::is_specialized || !(std::is_same_v<Op, op::min> || std::is_same_v<Op, op::max>),
            "hvd: min and max over ranks that have run out need std::numeric_limits of the element "
            "type");
        require_step();
        const auto flat = detail::flat_view(x);
        if (mine() == 0) {
            // An infinity would be refused where ranks look for them, and then no rank has one.
            const bool infinite =
                limits::has_infinity && !detail::access::session_of(comm_).options().check_finite;
            if constexpr (std::is_same_v<Op, op::sum>) fill(flat, T(0));
            else if constexpr (std::is_same_v<Op, op::product>) fill(flat, T(1));
            else if constexpr (std::is_same_v<Op, op::min>)
                fill(flat, infinite ? limits::infinity() : limits::max());
            else if constexpr (std::is_same_v<Op, op::max>)
                fill(flat, infinite ? -limits::infinity() : limits::lowest());
            else
                static_assert(std::is_same_v<Op, op::sum>,
                              "hvd: uneven_scope reduces with sum, product, min and max");
        }
        comm_.allreduce(flat, with, {.name = "uneven"});
    }

private:
    void require_step() const {
        if (total_ == 0)
            detail::refuse(comm_.rank(),
                           "uneven_scope: no step is under way, or no rank has samples in it");
    }
    template <class T, class V>
    static void fill(const tensor_view<T>& tensor, V value) {
        for (T& x : detail::elements(tensor)) x = static_cast<T>(value);
    }
    template <class T>
    void multiply(const tensor_view<T>& tensor, double share) const {
        if (mine() == 0) fill(tensor, 0);
        else detail::scale(tensor, share);
    }
    std::size_t mine() const { return counts_[std::size_t(comm_.rank())]; }

    Comm& comm_;
    join_mode mode_;
    std::vector<std::size_t> counts_;
    std::size_t total_ = 0;
    int last_ = -1;
};

}  // namespace hvd::inline v0
