// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <limits>
#include <type_traits>
#include <vector>

#include "../comm/communicator.hpp"
#include "refuse.hpp"
#include "tensors.hpp"

namespace hvd {
inline namespace v0 {

/// What the mean over ranks of which some have run out is divided by.
enum class join_mode : std::uint8_t {
    real_samples,    ///< the samples that were there: Σ count · mean / Σ count
    divide_by_size,  ///< Horovod's join: ranks that ran out count as zeros
};

/// Ranks with different amounts of data, without anybody waiting: each step begins with one message
/// in which every rank says how many samples it has; a rank that has run out goes on answering with
/// nothing until all have.
///
///     hvd::uneven_scope scope(comm);
///     while (scope.begin_step(batch ? batch->size() : 0)) {
///         if (batch) backward(*batch); else zero(gradients);
///         scope.mean(gradients);
///         optimizer.step(...);
///     }
///
/// **Collective**: `begin_step` and the reductions, in the same order on all ranks. Feature I1.
template <class Comm>
class uneven_scope {
public:
    explicit uneven_scope(Comm& comm, join_mode mode = join_mode::real_samples)
        : comm_(comm), mode_(mode) {}

    /// Says how many samples this rank has in this step; false when no rank has any.
    bool begin_step(std::size_t samples) {
        counts_ = comm_.allgather(samples, {.name = "samples"}).values;
        total_ = 0;
        for (std::size_t r = 0; r < counts_.size(); ++r) {
            total_ += counts_[r];
            if (counts_[r] != 0) last_ = int(r);
        }
        return total_ > 0;
    }

    /// Each rank's number of samples in this step.
    const std::vector<std::size_t>& samples() const { return counts_; }
    /// Whether this rank takes part in this step.
    bool takes_part() const { return !counts_.empty() && mine() > 0; }
    /// The highest of the ranks that had samples in the last step that had any: the last to run
    /// out; -1 before.
    int last_rank() const { return last_; }

    /// What this rank's mean is multiplied by, so that an average over all ranks (an allreduce's, a
    /// distributed optimizer's) is the mean over all samples of the step; 0 for a rank without.
    double weight() const {
        require_step();
        if (mine() == 0) return 0;
        return mode_ == join_mode::divide_by_size ? 1
                                                  : comm_.size() * double(mine()) / double(total_);
    }

    /// `x` is a mean over this rank's samples, and becomes the mean over all ranks' (see
    /// `join_mode`). A rank without samples gives anything of that size. Not of integers: the
    /// ranks' shares, which are added up, would each be truncated.
    template <class X>
        requires writable<X>
    void mean(X&& x) {
        static_assert(!std::is_integral_v<detail::element_of<X>>,
                      "hvd: uneven_scope::mean is of floating-point elements: the ranks' shares of "
                      "integers are none");
        const double share = weight() / comm_.size();
        const auto flat = detail::flat_view(x);
        if (mine() == 0) fill(flat, 0);
        else detail::scale(flat, share);  // here, since a call's prescale is the same on all ranks
        comm_.allreduce(flat, sum, {.name = "mean of samples"});
    }

    /// Reduces with sum, min, max or product over the ranks that take part: the others give what
    /// changes nothing.
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
            constexpr bool infinite = limits::has_infinity;
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
    std::size_t mine() const { return counts_[std::size_t(comm_.rank())]; }

    Comm& comm_;
    join_mode mode_;
    std::vector<std::size_t> counts_;
    std::size_t total_ = 0;
    int last_ = -1;
};

}  // namespace v0
}  // namespace hvd
